"""Behind Sentinel: the primary is found, and found again after a failover."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from aiforge.core.events import Done
from aiforge.core.types import ConfigError
from tests.support.sentinel import Watched
from tests.support.servers import free_port
from tests.support.turns import Running, claim, read, submit
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.errors import Unavailable
from worker.contract.schemas import Lane
from worker.contract.server.connection import Connection
from worker.contract.server.fitness import check_redis
from worker.contract.settings import ContractSettings
from worker.contract.wakeups.broker import celery_application

pytestmark = pytest.mark.anyio


@pytest.fixture
def watched() -> Iterator[Watched]:
    with Watched() as watched:
        yield watched


def settings(url: str) -> ContractSettings:
    return ContractSettings(redis_url=url, namespace="sentinel")


async def test_what_replication_has_is_there_after_a_failover(watched: Watched) -> None:
    dead = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{watched.port}/mymaster"
    async with await TurnClient.connect(settings(dead)) as client:
        place = await submit(client, conversation_id="c")
        running = await claim(client.turns, place)
        await running.tokens("one")
        reading = asyncio.create_task(read(client, place))
        watched.primary.ask("WAIT", 1, 5_000)
        watched.primary.kill()
        await eventually(lambda: _answered(running), 20)
        assert watched.server is watched.replica
        events = await reading
        assert [number for number, _ in events] == list(range(1, len(events) + 1))
        assert events[-1][1] == Done()
        waiting = (await client.stats()).depth[Lane.CHAT]
        await submit(client, conversation_id="d")
        await eventually(lambda: _wait(client, waiting + 1))


async def test_a_primary_that_was_demoted_is_left(watched: Watched) -> None:
    connection = Connection(watched.url)
    assert await connection.run("presence", ["workers"], ["one", 60_000]) == 1
    watched.primary.ask("WAIT", 1, 5_000)
    watched.failover()
    assert await connection.run("presence", ["workers"], ["two", 60_000]) == 2
    assert watched.server is watched.replica
    await connection.close()


def test_what_no_sentinel_knows_is_refused(watched: Watched) -> None:
    assert check_redis(settings(watched.url)) == []
    with pytest.raises(ConfigError, match="AIFORGE_REDIS_URL: Sentinel knows no service 'other'"):
        check_redis(settings(watched.url.replace("mymaster", "other")))
    watched.replica.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(ConfigError, match=f"127.0.0.1:{watched.replica.port}: maxmemory-policy"):
        check_redis(settings(watched.url))


async def test_sentinels_that_are_away_are_waited_for() -> None:
    url = f"redis+sentinel://127.0.0.1:{free_port()}/mymaster"
    (warning,) = await asyncio.to_thread(check_redis, settings(url))
    assert "not checked" in warning
    connection = Connection(url)
    with pytest.raises(Unavailable, match=r"does not answer: Sentinel at 127\.0\.0\.1"):
        await connection.command("EXISTS", "x")


async def test_passwords_reach_servers_sentinels_and_celery(watched: Watched) -> None:
    for server in (watched.primary, watched.replica):
        server.ask("ACL", "SETUSER", "aiforge", "on", ">d:ta", "~*", "&*", "+@all")
    watched.ask("ACL", "SETUSER", "guard", "on", ">s:nt", "~*", "&*", "+@all")
    right = f"redis+sentinel://aiforge:d%3Ata@127.0.0.1:{watched.port}/mymaster/2"
    known = f"{right}?sentinel_username=guard&sentinel_password=s%3Ant"
    connection, shut_out = Connection(known), Connection(known.replace("s%3Ant", "wrong"))
    assert b"user=aiforge" in await connection.command("CLIENT", "INFO")
    with pytest.raises(Unavailable, match="Sentinel at"):
        await shut_out.command("EXISTS", "x")
    await connection.close()
    celery = celery_application(settings(known))
    with celery.connection_for_write() as broker:
        info = await asyncio.to_thread(broker.default_channel.client.client_info)
    assert (info["user"], info["db"]) == ("aiforge", 2)
    celery.close()


async def _answered(running: Running) -> bool:
    try:
        return (await running.answer("one")).accepted
    except Unavailable:
        return False


async def _wait(client: TurnClient, chats: int) -> bool:
    return (await client.stats()).depth[Lane.CHAT] >= chats
