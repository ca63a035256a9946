"""Every pool as a real worker process: the same work, the same shutdowns, the same faults.

Each pool has one worker for the rows that leave it alive; shutdowns have one of their own.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import secrets
import signal
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from celery import Celery
from celery.events.state import State

from aiforge.core.events import Token
from aiforge.testing import FakeProvider, Gate, Reply
from tests.support.messages import garbage, message, published_garbage
from tests.support.processes import Service
from tests.support.servers import RedisServer
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.ids import new_turn_id
from worker.contract.keys import Keys
from worker.contract.queues import TASKS, queue
from worker.contract.schemas import BatchItem, BatchRequest, BatchState, Lane, Turn, TurnRequest, TurnState
from worker.contract.settings import ContractSettings
from worker.contract.wakeups.broker import celery_application

pytestmark = pytest.mark.anyio
POOLS: Final = (
    "greenlets",
    "prefork",
    pytest.param("threads", marks=pytest.mark.soak),
    pytest.param("solo", marks=pytest.mark.soak),
)
SLOTS: Final = 3
NAMESPACE: Final = "pools"


class Stack:
    """A server, a provider, and a worker with one pool once it is started."""

    def __init__(self, pool: str, server: RedisServer, provider: FakeProvider, folder: Path) -> None:
        self.pool = pool
        self.server = server
        self.provider = provider
        self.folder = folder
        self.settings = ContractSettings(redis_url=server.url, namespace=NAMESPACE)
        self.redis = redis.Redis(port=server.port, decode_responses=True)
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.worker: Service
        self._stopping = contextlib.ExitStack()
        self._stopping.callback(self.redis.close)

    def start(self, **settings: str) -> None:
        known = {
            "redis_url": self.server.url,
            "namespace": NAMESPACE,
            "provider": "openai",
            "openai_api_key": "sk-test",
            "openai_base_url": self.provider.url,
            "metrics_port": "0",
            "pool": self.pool,
            "concurrency": str(SLOTS),
        }
        environment = {f"AIFORGE_{name.upper()}": value for name, value in {**known, **settings}.items()}
        environment["TMPDIR"] = str(self.temporary)
        self.worker = Service("worker", self.folder / "worker", environment, loaded=True)
        self._stopping.callback(self.worker.close)
        self.worker.ready()

    def close(self) -> None:
        self._stopping.close()

    @property
    def unacknowledged(self) -> int:
        """Messages that were taken and not acknowledged."""
        return int(self.redis.hlen(f"{Keys(NAMESPACE).broker_prefix()}unacked"))

    def keeps_message_of(self, turn_id: str) -> bool:
        """Whether a message of a turn was taken and not acknowledged."""
        taken = self.redis.hvals(f"{Keys(NAMESPACE).broker_prefix()}unacked")
        return any(turn_id.encode() in base64.b64decode(json.loads(raw)[0]["body"]) for raw in taken)

    @property
    def sent(self) -> int:
        """How many messages were ever put on a queue of the server."""
        return int(self.redis.info("commandstats").get("cmdstat_lpush", {"calls": 0})["calls"])

    def push(self, raw: str | bytes) -> None:
        """Put anything on the queue of turns."""
        self.redis.lpush(f"{Keys(NAMESPACE).broker_prefix()}{queue(NAMESPACE, Lane.CHAT)}", raw)

    def publish(self, raw: str) -> None:
        """Send anything to whoever listens to Celery's control."""
        heard = self.redis.publish(f"{Keys(NAMESPACE).broker_prefix()}/0.celery.pidbox", raw)
        assert heard, "nobody listens"

    def dropped(self, reason: str) -> int:
        found = re.search(
            rf'aiforge_messages_dropped_total{{reason="{reason}"}} (\d+)', self.read("/metrics")
        )
        return int(found[1]) if found else 0

    def read(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"{self.worker.url}{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as refused:
            with refused:
                return str(refused.read().decode())


@pytest.fixture(scope="module", params=POOLS)
def stack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with RedisServer() as server, FakeProvider(tokens=5) as provider:
        made = Stack(request.param, server, provider, tmp_path_factory.mktemp("pool"))
        with contextlib.closing(made):
            made.start()
            yield made


@pytest.fixture(params=POOLS)
def leaving(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stack]:
    """A stack whose worker the test starts and stops."""
    with RedisServer() as server, FakeProvider(tokens=5) as provider:
        made = Stack(request.param, server, provider, tmp_path)
        with contextlib.closing(made):
            yield made


@pytest.fixture
async def client(request: pytest.FixtureRequest) -> AsyncIterator[TurnClient]:
    name = "stack" if "stack" in request.fixturenames else "leaving"
    made: Stack = request.getfixturevalue(name)
    async with await TurnClient.connect(made.settings) as connected:
        yield connected


@pytest.fixture
def celery(stack: Stack) -> Iterator[Celery]:
    application = celery_application(stack.settings)
    yield application
    application.close()


@pytest.mark.parametrize("leaving", ["threads", "solo"], indirect=True)
async def test_a_turn_runs_in_the_other_pools_too(leaving: Stack, client: TurnClient) -> None:
    leaving.start()
    turn = await client.submit(TurnRequest(message="Hello"))
    assert (await client.wait(turn.turn_id, 20)).state is TurnState.COMPLETED


async def test_a_turn_and_a_batch_run(stack: Stack, client: TurnClient) -> None:
    first = await client.submit(TurnRequest(message="Hello"), conversation_id=f"c-{stack.pool}")
    assert (await client.wait(first.turn_id, 20)).state is TurnState.COMPLETED
    second = await client.submit(TurnRequest(message="And now?"), conversation_id=f"c-{stack.pool}")
    assert (await client.wait(second.turn_id, 20)).attempts == 1
    assert len(await client.messages(f"c-{stack.pool}")) == 4

    items = [BatchItem(message=f"Question {number}?", id=str(number)) for number in range(6)]
    batch_id = (await client.submit_batch(BatchRequest(items=items))).batch_id
    batch = await eventually(lambda: _over(client, batch_id), 20)
    assert (batch.state, batch.completed, batch.failed) == (BatchState.COMPLETED, 6, 0)
    assert [row.id for row in await client.results(batch_id)] == [item.id for item in items]

    text = stack.read("/metrics")
    assert 'aiforge_turns_total{lane="chat",outcome="completed"} 2.0' in text
    assert 'aiforge_items_total{outcome="completed"} 6.0' in text
    assert re.search(r'aiforge_build_info{version="[\d.]+"} 1.0', text)
    assert "pid=" not in text
    assert stack.read("/readyz") == "ok\n"
    await eventually(lambda: stack.unacknowledged == 0)


async def test_a_wake_up_is_acknowledged_when_its_turn_is_over(stack: Stack, client: TurnClient) -> None:
    turn = await _held(stack, client)
    assert stack.keeps_message_of(turn.turn_id)
    stack.provider.open(turn.conversation_id)
    assert (await client.wait(turn.turn_id, 20)).state is TurnState.COMPLETED
    await eventually(lambda: not stack.keeps_message_of(turn.turn_id))


async def test_it_answers_what_it_is_and_does(stack: Stack, client: TurnClient, celery: Celery) -> None:
    (stats,) = _asked(celery).stats().values()
    assert stats["pool"]["max-concurrency"] == (1 if stack.pool == "solo" else SLOTS)
    if stack.pool == "solo":
        return  # it hears nothing while its one slot is taken
    turn = await _held(stack, client)
    ((name, active),) = _asked(celery).active().items()
    assert name.startswith("aiforge-")
    assert [task["name"] for task in active] == [TASKS[Lane.CHAT]]
    stack.provider.open(turn.conversation_id)
    await client.wait(turn.turn_id, 20)
    await eventually(lambda: _asked(celery).active() == {name: []})


async def test_what_watches_celery_sees_workers_and_tasks(
    stack: Stack, client: TurnClient, celery: Celery
) -> None:
    seen = State()
    celery.control.enable_events(reply=True, limit=1, timeout=10)
    with celery.connection_for_read() as connection:
        receiver = celery.events.Receiver(connection, handlers={"*": seen.event})
        with receiver.consumer_context(wakeup=False) as (listening, _, _):
            _drain(listening, lambda: seen.workers)
            turn = await client.submit(TurnRequest(message="Watch me"))
            _drain(listening, lambda: any(task.state == "SUCCESS" for task in seen.tasks.values()))
    celery.control.disable_events(reply=True, limit=1, timeout=10)
    (task,) = seen.tasks.values()
    assert (task.name, task.args) == (TASKS[Lane.CHAT], f"({turn.turn_id[:14]}…)")
    assert task.worker.hostname.startswith("aiforge-")


async def test_a_revoked_wake_up_is_not_obeyed(stack: Stack, celery: Celery) -> None:
    before = stack.dropped("unknown")
    celery.control.revoke("revoked", reply=True, limit=1, timeout=10)
    for task_id in ("revoked", secrets.token_hex(8)):
        celery.send_task(
            TASKS[Lane.CHAT], args=(new_turn_id(1),), task_id=task_id, queue=queue(NAMESPACE, Lane.CHAT)
        )
    await eventually(lambda: stack.dropped("unknown") == before + 1)
    await eventually(lambda: stack.unacknowledged == 0)
    assert stack.dropped("unknown") == before + 1


async def test_a_running_task_that_is_revoked_hands_its_turn_back(
    stack: Stack, client: TurnClient, celery: Celery
) -> None:
    if stack.pool == "solo":
        return  # it hears nothing while its one slot is taken
    turn = await _held(stack, client, times=1)
    ((task,),) = _asked(celery).active().values()
    celery.control.revoke(task["id"], terminate=True)
    ended = await client.wait(turn.turn_id, 20)
    assert (ended.state, ended.attempts) == (TurnState.COMPLETED, 1)
    assert len([call for call in stack.provider.calls if call.question == turn.conversation_id]) == 2


async def test_garbage_is_counted_and_dropped(stack: Stack, client: TurnClient) -> None:
    before = {reason: stack.dropped(reason) for reason in ("garbage", "unknown_task", "forged", "unknown")}
    nothings = garbage()
    for nothing in nothings:
        stack.push(nothing)
    stack.push(message(task="os.system"))
    for forged in ("' OR 1=1", "63" + "g" * 20):
        stack.push(message(args=[forged]))
    later = "2099-01-01T00:00:00"
    stack.push(message(args=[new_turn_id(1)], eta=later, expires=later, timelimit="never", retries="all"))
    expected = {"garbage": len(nothings), "unknown_task": 1, "forged": 2, "unknown": 1}
    await eventually(
        lambda: {reason: stack.dropped(reason) - before[reason] for reason in before} == expected
    )

    turn = await client.submit(TurnRequest(message="Still there?"))
    assert (await client.wait(turn.turn_id, 20)).state is TurnState.COMPLETED
    await eventually(lambda: stack.unacknowledged == 0)
    assert stack.worker.running


async def test_published_garbage_is_counted_and_dropped(
    stack: Stack, client: TurnClient, celery: Celery
) -> None:
    before, nothings = stack.dropped("garbage"), published_garbage()
    for nothing in nothings:
        stack.publish(nothing)
    await eventually(lambda: stack.dropped("garbage") - before == len(nothings))
    assert len(_asked(celery).ping()) == 1
    turn = await client.submit(TurnRequest(message="Still there?"))
    assert (await client.wait(turn.turn_id, 20)).state is TurnState.COMPLETED


async def test_a_killed_child_is_replaced_and_has_nothing_in_flight(
    stack: Stack, client: TurnClient, celery: Celery
) -> None:
    if stack.pool != "prefork":
        return  # the others have no children
    turn = await _held(stack, client, times=1)
    ((task,),) = _asked(celery).active().values()
    os.kill(task["worker_pid"], signal.SIGKILL)
    running = 'aiforge_turns_in_flight{lane="chat"} 1.0'
    await eventually(lambda: running not in stack.read("/metrics"), 5)

    def children() -> set[int]:
        (stats,) = _asked(celery).stats().values()
        return set(stats["pool"]["processes"]) - {task["worker_pid"]}

    await eventually(lambda: len(children()) == SLOTS)
    assert (await client.wait(turn.turn_id, 30)).state is TurnState.COMPLETED


async def test_a_full_redis_loses_nothing(stack: Stack, client: TurnClient) -> None:
    before, sent = stack.dropped("redis_full"), stack.sent
    stack.worker.signal(signal.SIGSTOP)
    turn = await client.submit(TurnRequest(message="Room for one more?"))
    await eventually(lambda: stack.sent > sent)
    stack.redis.config_set("maxmemory", "1mb")
    stack.worker.signal(signal.SIGCONT)
    await eventually(lambda: stack.dropped("redis_full") > before)
    assert (await client.turn(turn.turn_id)).state is TurnState.QUEUED

    stack.redis.config_set("maxmemory", "0")
    assert (await client.wait(turn.turn_id, 20)).state is TurnState.COMPLETED
    assert stack.worker.running


async def test_it_goes_on_when_redis_was_killed_and_is_back(stack: Stack, client: TurnClient) -> None:
    running = await _held(stack, client)
    stack.server.kill()
    stack.server.start()
    back = time.monotonic()
    stack.provider.open(running.conversation_id)
    turn = await client.submit(TurnRequest(message="Back again?"))
    for started in (running, turn):
        assert (await client.wait(started.turn_id, 10)).state is TurnState.COMPLETED
    assert time.monotonic() - back < 10
    assert stack.worker.running


async def test_sigterm_waits_for_turns_and_hands_the_others_back_in_time(
    leaving: Stack, client: TurnClient
) -> None:
    if leaving.pool == "prefork":
        (leaving.temporary / "aiforge-metrics-of-a-killed-worker").mkdir()
    leaving.start(grace_seconds="2")
    ends = None if leaving.pool == "solo" else await _held(leaving, client)  # which has one slot
    stays = await _held(leaving, client)
    leaving.worker.process.terminate()
    began = time.monotonic()
    assert await eventually(lambda: leaving.read("/readyz") == "draining\n", 2)
    if ends is not None:
        leaving.provider.open(ends.conversation_id)
        assert (await client.wait(ends.turn_id, 2)).state is TurnState.COMPLETED
    assert (await client.turn(stays.turn_id)).state is TurnState.RUNNING

    await _back(client, stays, 4)
    assert time.monotonic() - began > 1.5
    assert leaving.worker.process.wait(10) == 0
    assert leaving.unacknowledged == 0
    assert list(leaving.temporary.iterdir()) == []


@pytest.mark.parametrize(
    "signals", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGQUIT,)], ids=["again", "quit"]
)
async def test_a_second_sigterm_or_sigquit_hands_everything_back_at_once(
    leaving: Stack, client: TurnClient, signals: tuple[signal.Signals, ...]
) -> None:
    leaving.start()
    turns = [await _held(leaving, client) for _ in range(1 if leaving.pool == "solo" else 2)]
    for number in signals[:-1]:
        leaving.worker.process.send_signal(number)
        await eventually(lambda: leaving.read("/readyz") == "draining\n", 2)
    leaving.worker.process.send_signal(signals[-1])
    began = time.monotonic()
    for turn in turns:
        await _back(client, turn, 2)
    assert leaving.worker.process.wait(10) == 0
    assert time.monotonic() - began < 6
    assert leaving.unacknowledged == 0


async def _held(stack: Stack, client: TurnClient, *, times: int | None = None) -> Turn:
    """A turn that runs, has said one word, and goes on when the gate with its conversation's name opens.

    With `times`, only so many attempts of it are held.
    """
    name = f"held-{secrets.token_hex(4)}"
    stack.provider.when(name, Reply(chunks=["One ", Gate(name), "two."]), times=times)
    turn = await client.submit(TurnRequest(message=name), conversation_id=name)
    async with asyncio.timeout(20):
        async for _, event in client.events(turn.turn_id):
            if isinstance(event, Token):
                break
    return turn


async def _back(client: TurnClient, turn: Turn, seconds: float) -> None:
    """The turn waits again, and the attempt that was broken off is not counted."""

    async def queued() -> bool:
        return (await client.turn(turn.turn_id)).state is TurnState.QUEUED

    await eventually(queued, seconds)
    assert (await client.turn(turn.turn_id)).attempts == 0


async def _over(client: TurnClient, batch_id: str) -> Any:
    batch = await client.batch(batch_id)
    return batch if batch.state is not BatchState.IN_PROGRESS else None


def _drain(connection: Any, enough: Callable[[], Any]) -> None:
    limit = time.monotonic() + 20
    while not enough():
        assert time.monotonic() < limit
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=1)


def _asked(celery: Celery) -> Any:
    return celery.control.inspect(limit=1, timeout=10)
