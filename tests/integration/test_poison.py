"""What kills its process, what is killed with its worker, and all that runs beside them: real workers."""

from __future__ import annotations

import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from aiforge.core.events import Failed, Message, Reset, Started, Token
from aiforge.testing import FakeProvider, Gate, Reply
from tests.support.poison import DEAF, POISON
from tests.support.processes import Service, Start, children
from tests.support.turns import DEAD, SUSPECT_AFTER, claim, crash, read, state, submit
from tests.support.waiting import eventually, wait_until
from worker.contract.client import TurnClient
from worker.contract.places import Place
from worker.contract.schemas import BatchItem, BatchRequest, BatchState, TurnState

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
POOLS: Final = (
    "greenlets",
    "prefork",
    pytest.param("threads", marks=pytest.mark.soak),
    pytest.param("solo", marks=pytest.mark.soak),
)
MODEL: Final = "tests.support.poison:model"
SHORT: Final[dict[str, Any]] = {"lease_seconds": "1.5", "concurrency": "3"}
HALF: Final = Reply(chunks=["Half ", "an ", Gate("rest"), "answer."])


class Row:
    """One worker after the other: the next one starts when the last one has died."""

    def __init__(self, start: Start, **settings: str) -> None:
        self._start = start
        self._settings = {**SHORT, **settings}
        self.now = self._next()
        self.dead = 0

    def keep(self) -> None:
        if not self.now.running:
            self.dead += 1
            self.now = self._next()

    def _next(self) -> Service:
        return self._start(**self._settings)


def forked(worker: Service) -> list[int]:
    """The suspects' processes: those that the worker's copy has forked."""
    return [process for child in children(worker.process.pid) for process in children(child)]


def gone(processes: list[int]) -> bool:
    return not any(_lives(process) for process in processes)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


async def suspect(client: TurnClient, conversation: str | None = None, message: str = "Hello?") -> Place:
    place = await submit(client, message, conversation_id=conversation)
    for _ in range(SUSPECT_AFTER):
        await crash(client.turns, await claim(client.turns, place))
    return place


async def half_said(client: TurnClient, place: Place, attempt: int = SUSPECT_AFTER + 1) -> None:
    """Wait until an attempt has said half of its answer."""
    seen = {0: 0}
    async for _, event in client.events(place.turn_id):
        if isinstance(event, Started):
            seen[event.attempt] = 0
        elif isinstance(event, Token):
            seen[max(seen)] += 1
        if seen.get(attempt) == 2:
            return


@pytest.mark.parametrize("pool", POOLS)
async def test_a_poison_turn_has_three_attempts(client: TurnClient, worker_process: Start, pool: str) -> None:
    poison = await submit(client, POISON, conversation_id="poison")
    following = await submit(client, conversation_id="poison")
    neighbours = [await submit(client, conversation_id=f"n-{number}") for number in range(6)]
    row = Row(worker_process, pool=pool, provider=MODEL)

    async def over() -> bool:
        row.keep()
        return (await client.turn(poison.turn_id)).finished

    await eventually(over, 120)
    turn = await client.turn(poison.turn_id)
    assert (turn.state, turn.attempts, turn.error) == (TurnState.FAILED, 3, DEAD)
    events = [event for _, event in await read(client, poison)]
    assert [event.attempt for event in events if isinstance(event, Reset)] == [2, 3]
    assert events[-1] == Failed(DEAD.code, DEAD.message)
    for place in (following, *neighbours):
        assert (await client.wait(place.turn_id, 30)).state is TurnState.COMPLETED
        assert len(await client.messages(place.conversation_id)) == 2
    assert row.dead == (0 if pool == "prefork" else 2), "a pool's child dies, or the worker that it is"
    assert row.now.running
    await eventually(lambda: forked(row.now) == [])


async def test_a_poison_item_becomes_a_row(client: TurnClient, worker_process: Start) -> None:
    questions = ["a", "b", POISON, "c", "d", "e"]
    items = [BatchItem(message=question, id=question) for question in questions]
    batch_id = (await client.submit_batch(BatchRequest(items=items))).batch_id
    row = Row(worker_process, provider=MODEL)

    async def over() -> bool:
        row.keep()
        return (await client.batch(batch_id)).state is BatchState.COMPLETED

    await eventually(over, 120)
    rows = await client.results(batch_id)
    assert [found.id for found in rows] == questions
    assert [found.error for found in rows] == [DEAD if question == POISON else None for question in questions]
    assert row.dead == 2


async def test_workers_that_did_not_run_it_are_untouched(client: TurnClient, worker_process: Start) -> None:
    workers = [worker_process(wait=False, provider=MODEL, **SHORT) for _ in range(3)]
    for worker in workers:
        worker.ready()
    poison = await submit(client, POISON)
    assert (await client.wait(poison.turn_id, 60)).error == DEAD
    neighbour = await submit(client)
    assert (await client.wait(neighbour.turn_id, 30)).attempts == 1
    assert sorted(worker.running for worker in workers) == [False, False, True]


@pytest.mark.parametrize(
    "strike",
    [Service.kill, lambda worker: worker.process.kill()],
    ids=["with its worker", "by its worker's death"],
)
async def test_an_innocent_suspect_is_answered_in_the_end(
    client: TurnClient,
    provider: FakeProvider,
    worker_process: Start,
    strike: Callable[[Service], None],
) -> None:
    provider.when("Hello?", HALF)
    place, kills = await suspect(client), 3
    for kill in range(kills):
        worker = worker_process(**SHORT)
        await half_said(client, place, SUSPECT_AFTER + 1 + kill)
        processes = [worker.process.pid, *children(worker.process.pid), *forked(worker)]
        assert len(processes) == 3
        strike(worker)
        worker.process.wait()
        await eventually(lambda: gone(processes), 5)  # noqa: B023  # waited for here
    provider.open("rest")
    worker_process(**SHORT)
    turn = await client.wait(place.turn_id, 30)
    assert (turn.answer, turn.attempts) == ("Half an answer.", SUSPECT_AFTER + kills + 1)


async def test_one_that_lets_nothing_else_run_dies_with_its_worker(
    client: TurnClient, worker_process: Start, tmp_path: Path
) -> None:
    now = tmp_path / "now"
    place = await suspect(client, message=f"{DEAF} {now}")
    worker = worker_process(provider=MODEL, **SHORT)
    await eventually(now.exists, 20)
    processes = [*children(worker.process.pid), *forked(worker)]
    worker.process.kill()
    await eventually(lambda: gone(processes), 5)
    worker_process(**SHORT)
    assert (await client.wait(place.turn_id, 30)).state is TurnState.COMPLETED


async def test_a_pools_child_takes_its_suspect_along(
    client: TurnClient, provider: FakeProvider, worker_process: Start
) -> None:
    provider.when("Hello?", HALF, times=1)
    place = await suspect(client)
    worker = worker_process(pool="prefork", **SHORT)
    await half_said(client, place)
    (process,) = forked(worker)
    _, *pool = children(worker.process.pid)
    for child in pool:
        os.kill(child, signal.SIGKILL)
    await eventually(lambda: gone([process]), 5)
    assert (await client.wait(place.turn_id, 30)).attempts == SUSPECT_AFTER + 2
    assert await state(client, place) is TurnState.COMPLETED


@pytest.mark.parametrize("all_at_once", [False, True], ids=["to the worker", "to all its processes"])
@pytest.mark.parametrize("pool", POOLS)
async def test_it_obeys_what_its_worker_is_told(
    client: TurnClient, provider: FakeProvider, worker_process: Start, pool: str, *, all_at_once: bool
) -> None:
    """A cancellation first, then SIGTERM, twice."""
    for question in ("first", "second"):
        provider.when(question, HALF)
    cancelled = await suspect(client, message="first")
    handed_back = await suspect(client, message="second")
    worker = worker_process(pool=pool, **SHORT)
    await half_said(client, cancelled)
    await client.cancel(cancelled.turn_id)
    (call,) = [call for call in provider.calls if call.question == "first"]
    await provider.wait_until_async(lambda: call.end != "running")
    assert (await client.wait(cancelled.turn_id, 5)).answer == "Half an "
    assert [event for _, event in await read(client, cancelled)][-2] == Message("Half an ", stopped=True)
    counted = 'aiforge_provider_calls_total{outcome="aborted",purpose="answer"} 1.0'
    await eventually(lambda: counted in _read(worker, "/metrics"))

    await half_said(client, handed_back)
    processes = [*children(worker.process.pid), *forked(worker)]

    def terminate() -> None:
        if all_at_once:
            worker.signal(signal.SIGTERM)
        else:
            worker.process.terminate()

    terminate()
    wait_until(lambda: "draining" in _read(worker, "/readyz"), 5)
    terminate()
    assert worker.process.wait(10) == 0
    turn = await client.turn(handed_back.turn_id)
    assert (turn.state, turn.attempts) == (TurnState.QUEUED, SUSPECT_AFTER)
    await eventually(lambda: gone(processes), 5)


def _read(worker: Service, path: str) -> str:
    try:
        with urllib.request.urlopen(f"{worker.url}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as refused:
        with refused:
            return str(refused.read().decode())
