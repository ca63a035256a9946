"""Over TLS: a turn's life and its wake-up, and what is said of certificates that are not trusted."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiforge.cli import redis_probe
from aiforge.core.topology import Kind, topology_of
from aiforge.core.types import ConfigError
from tests.support.certificates import Certificates
from tests.support.encrypted import Encrypted, encrypted
from tests.support.processes import Service
from tests.support.servers import RedisServer
from tests.support.turns import claim, read, submit
from tests.support.waiting import eventually
from worker.broker import transport
from worker.contract.client import TurnClient
from worker.contract.errors import Unavailable
from worker.contract.queues import queue
from worker.contract.schemas import Lane, TurnState
from worker.contract.server.connection import Connection
from worker.contract.server.fitness import check_redis
from worker.contract.settings import ContractSettings
from worker.contract.wakeups.broker import celery_application
from worker.contract.wakeups.wake import Waker

pytestmark = [
    pytest.mark.anyio,
    # asyncio leaves a TLS handshake that is cut off by its time limit to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KINDS: tuple[Kind, ...] = ("server", "sentinel", "cluster")


@pytest.fixture(scope="module", params=KINDS)
def place(
    request: pytest.FixtureRequest, redis7: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Encrypted]:
    with encrypted(request.param, tmp_path_factory.mktemp("tls")) as place:
        yield place


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority that has signed none of the servers' certificates."""
    return Certificates.make(tmp_path_factory.mktemp("stranger")).authority


def settings(place: Encrypted) -> ContractSettings:
    return ContractSettings(redis_url=place.url, broker_url=place.broker_url, namespace="tls")


def _woken(place: Encrypted) -> str:
    """The next message of the chat lane, as a worker's transport reads it."""
    celery = celery_application(settings(place))
    celery.conf.broker_transport = transport.PATHS[topology_of(place.broker_url).kind]
    with celery.connection_for_read() as connection:
        waiting = connection.SimpleQueue(queue("tls", Lane.CHAT))
        message = waiting.get(timeout=10)
        message.ack()
        waiting.close()
    celery.close()
    return str(message.decode()[0][0])


async def test_a_turn_is_stored_announced_claimed_and_committed(place: Encrypted) -> None:
    async with await TurnClient.connect(settings(place)) as client:
        await eventually(lambda: _fit(client.settings), 30)
        turn = await submit(client, conversation_id="c")
        reading = asyncio.create_task(read(client, turn))
        assert await asyncio.to_thread(_woken, place) == turn.turn_id
        running = await claim(client.turns, turn)
        assert await running.tokens("one")
        assert (await running.answer("one")).accepted
        assert (await client.turn(turn.turn_id)).state is TurnState.COMPLETED
        assert [number for number, _ in await reading] == list(range(1, 6))


async def test_an_authority_that_did_not_sign_is_refused(place: Encrypted, stranger: Path) -> None:
    wrong = place.url.replace(str(place.authority), str(stranger))
    connection = Connection(wrong)
    with pytest.raises(Unavailable, match="its certificate is not trusted"):
        await connection.command("EXISTS", "x")
    await connection.close()
    broker = place.broker_url.replace(str(place.authority), str(stranger))
    for name, store, messages in (("REDIS", wrong, place.broker_url), ("BROKER", place.url, broker)):
        known = ContractSettings(redis_url=store, broker_url=messages)
        # On a busy machine a Sentinel may be too slow to be asked.
        await eventually(functools.partial(_untrusted, known, f"AIFORGE_{name}_URL: 127.0.0.1:"), 30)


async def _fit(known: ContractSettings) -> bool:
    return await asyncio.to_thread(check_redis, known) == []


async def _untrusted(known: ContractSettings, begins: str) -> bool:
    """Whether the check refuses these settings with one line that says where and why."""
    try:
        await asyncio.to_thread(check_redis, known)
    except ConfigError as error:
        line = str(error)
        assert line.startswith(begins), line
        assert line.endswith("see ssl_ca_certs in the URL"), line
        return True
    return False


async def test_the_doctor_s_probe_gets_an_answer(place: Encrypted, stranger: Path) -> None:
    assert {found.policy for found in await asyncio.to_thread(_probed, place.url)} == {"noeviction"}
    with pytest.raises(redis_probe.ProbeError, match="certificate verify failed"):
        await asyncio.to_thread(_probed, place.url.replace(str(place.authority), str(stranger)))


def _probed(url: str) -> list[redis_probe.Answers]:
    return [redis_probe.ask(one) for one in redis_probe.servers(url)]


async def test_authorities_of_the_machine_are_enough(
    place: Encrypted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a Redis that is rented: the URL says nothing of an authority. Celery sends here."""
    monkeypatch.setenv("SSL_CERT_FILE", str(place.authority))
    bare = Encrypted(_bare(place.url, place), _bare(place.broker_url, place), place.authority)
    connection, waker = Connection(bare.url), Waker(settings(bare))
    assert await connection.command("EXISTS", "x") == 0
    waker.wake("171f0a93c2d4e5b6a7f809")
    assert await asyncio.to_thread(_woken, bare) == "171f0a93c2d4e5b6a7f809"
    await waker.close()
    await connection.close()


def _bare(url: str, place: Encrypted) -> str:
    return url.replace(f"ssl_ca_certs={place.authority}", "").replace("?&", "?").removesuffix("?")


@pytest.fixture
def strict(redis7: RedisServer, tmp_path: Path) -> Iterator[RedisServer]:
    """A server that asks for its clients' certificates."""
    tls = Certificates.make(tmp_path)
    with RedisServer("redis", options={"tls-auth-clients": "yes"}, tls=tls) as server:
        yield server


@pytest.mark.parametrize("module", ["worker", "api"])
def test_a_process_that_trusts_the_wrong_authority_says_so_in_one_line(
    module: str, strict: RedisServer, stranger: Path, tmp_path: Path
) -> None:
    wrong = f"rediss://127.0.0.1:{strict.port}/0?ssl_ca_certs={stranger}"
    known = {"REDIS_URL": wrong, "PROVIDER": "offline", "API_PORT": "0"}
    service = Service(module, tmp_path, {f"AIFORGE_{name}": value for name, value in known.items()})
    assert service.process.wait(60) == 3
    (line,) = service.output.splitlines()
    assert line.startswith(f"{module}: AIFORGE_REDIS_URL: 127.0.0.1:{strict.port}: its certificate is not ")
    service.close()


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    gone, empty = tmp_path / "gone.pem", tmp_path / "empty.pem"
    empty.write_text("")
    for url in ("rediss://h", "rediss+cluster://h,i", "rediss+sentinel://h/m"):
        for query, says in (
            (f"ssl_ca_certs={gone}", f"ssl_ca_certs: there is no {gone}"),
            (f"ssl_ca_certs={empty}", "ssl_ca_certs: cannot be used for TLS: "),
            (f"ssl_certfile={empty}&ssl_keyfile={gone}", f"ssl_keyfile: there is no {gone}"),
            ("ssl_cert_reqs=maybe", "Invalid SSL Certificate Requirements Flag: maybe"),
        ):
            with pytest.raises(ConfigError, match=f"^AIFORGE_REDIS_URL: {says}"):
                ContractSettings.load(redis_url=f"{url}?{query}")
