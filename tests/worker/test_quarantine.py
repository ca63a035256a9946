"""Suspects in processes of their own: answered there, given up when they die there, never when others die."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiforge.core.events import Cancelled, Failed, Message, Token
from aiforge.testing import FakeProvider, Gate, Reply
from tests.support.forks import forking, no_forks
from tests.support.poison import DEAF, POISON
from tests.support.processes import children
from tests.support.runners import LocalWorker
from tests.support.slices import Sliced, kill, take
from tests.support.turns import DEAD, SUSPECT_AFTER, claim, crash, read, state, submit
from tests.support.waiting import eventually
from worker import metrics
from worker.contract.client import TurnClient
from worker.contract.places import Place
from worker.contract.schemas import Batch, BatchItem, BatchRequest, BatchState, TurnState
from worker.suspects.forks import Forks
from worker.suspects.quarantine import PLACES, STOP_SECONDS

pytestmark = pytest.mark.anyio
MODEL = "tests.support.poison:model"
HALF = Reply(chunks=["Half ", "an ", Gate("rest"), "answer."])


@pytest.fixture(scope="module")
def forked() -> Iterator[tuple[Forks, int]]:
    with forking() as made:
        yield made


@pytest.fixture
def forks(forked: tuple[Forks, int]) -> Forks:
    return forked[0]


@pytest.fixture
def zygote(forked: tuple[Forks, int]) -> int:
    """The process whose children are the suspects."""
    return forked[1]


async def suspect(client: TurnClient, message: str = "Hello?", conversation: str | None = None) -> Place:
    place = await submit(client, message, conversation_id=conversation)
    for _ in range(SUSPECT_AFTER):
        await crash(client.turns, await claim(client.turns, place))
    return place


async def suspicious(client: TurnClient, *messages: str) -> Batch:
    """A batch whose first slice, of one item, was in two crashes."""
    items = [BatchItem(message=message, id=message) for message in messages]
    batch = await client.submit_batch(BatchRequest(items=items))
    for _ in range(SUSPECT_AFTER):
        assert isinstance(await take(client.batches, batch.batch_id), Sliced)
        await kill(client.batches, batch.batch_id, 0)
    return batch


async def said(client: TurnClient, place: Place, count: int = 1) -> None:
    """Wait until readers have seen so many tokens."""
    seen = 0
    async for _, event in client.events(place.turn_id):
        seen += isinstance(event, Token)
        if seen == count:
            return


async def outcomes(client: TurnClient, place: Place) -> list[str]:
    return [call.outcome for call in await client.turns.calls(place.turn_id)]


def made(outcome: str) -> float:
    return float(metrics.CALLS.labels("answer", outcome)._value.get())


async def test_it_is_answered_in_a_process_of_its_own(
    client: TurnClient, provider: FakeProvider, forks: Forks, zygote: int
) -> None:
    place = await suspect(client, conversation="c")
    following = await submit(client, conversation_id="c")
    calls, first_tokens = made("ok"), metrics.FIRST_TOKEN_SECONDS.labels("chat")._sum.get()
    async with LocalWorker(client, provider, forks=forks, PROVIDER=MODEL) as worker:
        await worker.turns.run(place.turn_id)
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.attempts) == (TurnState.COMPLETED, SUSPECT_AFTER + 1), turn.error
    assert turn.answer != f"from {os.getpid()}"
    assert (await client.turn(following.turn_id)).answer == f"from {os.getpid()}"
    assert await outcomes(client, place) == ["lost", "lost", "ok"]
    assert made("ok") == calls + 2
    assert metrics.FIRST_TOKEN_SECONDS.labels("chat")._sum.get() > first_tokens
    await eventually(lambda: children(zygote) == [])


async def test_one_that_kills_its_process_is_given_up_at_once(
    client: TurnClient, provider: FakeProvider, forks: Forks, zygote: int
) -> None:
    poison = await suspect(client, POISON, conversation="c")
    following = await submit(client, conversation_id="c")
    neighbour = await suspect(client)
    dead = metrics.FAILURES.labels("chat", "dead_lettered")._value.get()
    async with LocalWorker(client, provider, forks=forks, PROVIDER=MODEL) as worker:
        beside = worker.start(neighbour.turn_id)
        await worker.turns.run(poison.turn_id)
        await beside
    turn = await client.turn(poison.turn_id)
    assert (turn.state, turn.attempts, turn.error) == (TurnState.FAILED, SUSPECT_AFTER + 1, DEAD)
    events = [event for _, event in await read(client, poison)]
    assert isinstance(events[-3], Token)
    assert events[-1] == Failed(DEAD.code, DEAD.message)
    assert await outcomes(client, poison) == ["lost"] * 3
    assert metrics.FAILURES.labels("chat", "dead_lettered")._value.get() == dead + 1
    assert [await state(client, place) for place in (following, neighbour)] == [TurnState.COMPLETED] * 2


async def test_one_that_is_killed_together_with_its_worker_is_innocent(
    client: TurnClient,
    provider: FakeProvider,
    forked: tuple[Forks, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The blow has hit the process already, and the worker is on its way out."""
    forks, zygote = forked
    provider.push(HALF, "The whole answer.")
    place = await suspect(client)
    async with LocalWorker(client, provider, forks=forks) as worker:
        running = worker.start(place.turn_id)
        await said(client, place, 2)
        (process,) = children(zygote)
        os.kill(process, signal.SIGKILL)
        await eventually(lambda: "suspect_died" in caplog.text)
        worker.leases.stop_all("handed_back")
        await running
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.attempts) == (TurnState.QUEUED, SUSPECT_AFTER)
    assert await outcomes(client, place) == ["lost"] * 3
    async with LocalWorker(client, provider, forks=forks) as other:
        await other.turns.run(place.turn_id)
    assert (await client.turn(place.turn_id)).answer == "The whole answer."


async def test_a_cancelled_one_keeps_what_it_said(
    client: TurnClient, provider: FakeProvider, forks: Forks, zygote: int
) -> None:
    provider.push(HALF)
    place = await suspect(client, conversation="c")
    async with LocalWorker(client, provider, forks=forks) as worker:
        running = worker.start(place.turn_id)
        await said(client, place, 2)
        worker.leases.stop(place.turn_id, "cancelled")
        await running
        await provider.wait_until_async(lambda: provider.calls.running == 0)
    assert [message.content for message in await client.messages("c")] == ["Hello?", "Half an "]
    events = [event for _, event in await read(client, place)]
    assert events[-2:] == [Message("Half an ", stopped=True), Cancelled()]
    assert await outcomes(client, place) == ["lost", "lost", "aborted"]


async def test_one_that_is_handed_back_loses_nothing(
    client: TurnClient, provider: FakeProvider, forks: Forks, zygote: int
) -> None:
    provider.push(HALF, "The whole answer.")
    place = await suspect(client)
    async with LocalWorker(client, provider, forks=forks) as worker:
        running = worker.start(place.turn_id)
        await said(client, place, 2)
        worker.leases.stop_all("handed_back")
        began = time.monotonic()
        await running
        assert time.monotonic() - began < STOP_SECONDS
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.attempts) == (TurnState.QUEUED, SUSPECT_AFTER)
    async with LocalWorker(client, provider, forks=forks) as other:
        await other.turns.run(place.turn_id)
    assert (await client.turn(place.turn_id)).answer == "The whole answer."


@pytest.mark.parametrize("reason", ["cancelled", "handed_back"])
async def test_one_that_does_not_stop_is_killed(
    client: TurnClient, provider: FakeProvider, forked: tuple[Forks, int], tmp_path: Path, reason: str
) -> None:
    forks, zygote = forked
    place = await suspect(client, f"{DEAF} {tmp_path / 'now'}")
    async with LocalWorker(client, provider, forks=forks, PROVIDER=MODEL) as worker:
        running = worker.start(place.turn_id)
        await eventually((tmp_path / "now").exists)
        began = time.monotonic()
        if reason == "cancelled":
            worker.leases.stop(place.turn_id, "cancelled")
        else:
            worker.leases.stop_all("handed_back")
        await running
        assert time.monotonic() - began < STOP_SECONDS + 1
    await eventually(lambda: children(zygote) == [])
    assert await outcomes(client, place) == ["lost"] * 3
    if reason == "handed_back":
        assert await state(client, place) is TurnState.QUEUED
    else:
        assert [event for _, event in await read(client, place)][-1] == Cancelled()


async def test_a_few_run_at_a_time_and_those_that_wait_can_be_stopped(
    client: TurnClient, provider: FakeProvider, forks: Forks, zygote: int
) -> None:
    provider.when("Hello?", HALF)
    places = [await suspect(client) for _ in range(PLACES + 2)]
    async with LocalWorker(client, provider, forks=forks) as worker:
        running = [worker.start(place.turn_id) for place in places]
        await asyncio.gather(*(said(client, place, 2) for place in places[:PLACES]))
        assert len(children(zygote)) == PLACES
        worker.leases.stop(places[-1].turn_id, "cancelled")
        await running[-1]
        provider.open("rest")
        await asyncio.gather(*running)
    assert [await state(client, place) for place in places[:-1]] == [TurnState.COMPLETED] * (PLACES + 1)
    assert await state(client, places[-1]) is TurnState.CANCELLED
    assert await outcomes(client, places[-1]) == ["lost", "lost"], "the call was never made"


async def test_a_process_that_cannot_begin_is_nobodys_fault(
    client: TurnClient, provider: FakeProvider, forks: Forks
) -> None:
    place = await suspect(client)
    async with LocalWorker(client, provider, forks=no_forks()) as worker:
        await worker.turns.run(place.turn_id)
        assert (await client.turn(place.turn_id)).attempts == SUSPECT_AFTER
        assert await outcomes(client, place) == ["lost", "lost"]
    async with LocalWorker(client, provider, forks=forks) as worker:
        await worker.turns.run(place.turn_id)
    assert await state(client, place) is TurnState.COMPLETED


async def test_an_item_is_answered_in_a_process_of_its_own(
    client: TurnClient, provider: FakeProvider, forks: Forks, zygote: int
) -> None:
    batch = await suspicious(client, "harmless", "another")
    items = metrics.ITEMS.labels("completed")._value.get()
    async with LocalWorker(client, provider, forks=forks, PROVIDER=MODEL) as worker:
        await _run_all(client, worker, batch)
    first, second = await client.results(batch.batch_id)
    assert first.answer != second.answer == f"from {os.getpid()}"
    assert metrics.ITEMS.labels("completed")._value.get() == items + 2


async def test_an_item_that_kills_its_process_becomes_a_row(
    client: TurnClient, provider: FakeProvider, forks: Forks, zygote: int
) -> None:
    batch = await suspicious(client, POISON, "harmless")
    async with LocalWorker(client, provider, forks=forks, PROVIDER=MODEL) as worker:
        await _run_all(client, worker, batch)
    done = await client.batch(batch.batch_id)
    assert (done.state, done.completed, done.failed) == (BatchState.COMPLETED, 1, 1)
    row = (await client.results(batch.batch_id))[0]
    assert (row.id, row.status, row.error) == (POISON, "error", DEAD)
    found = [call.outcome for call in await client.turns.calls(batch.batch_id)]
    assert sorted(found) == ["lost", "lost", "lost", "ok"]


async def test_an_item_is_handed_back_and_done_elsewhere(
    client: TurnClient, provider: FakeProvider, forks: Forks, zygote: int
) -> None:
    provider.push(Reply(chunks=[Gate("never"), "x"]))
    batch = await suspicious(client, "harmless")
    async with LocalWorker(client, provider, forks=forks) as worker:
        running = worker.start_slice(batch.batch_id)
        await provider.wait_until_async(lambda: provider.calls.running == 1)
        worker.leases.stop_all("handed_back")
        await running
    async with LocalWorker(client, provider, forks=forks) as other:
        await _run_all(client, other, batch)
    assert (await client.batch(batch.batch_id)).completed == 1


async def _run_all(client: TurnClient, worker: LocalWorker, batch: Batch) -> None:
    while (await client.batch(batch.batch_id)).state is BatchState.IN_PROGRESS:
        await worker.slices.run(batch.batch_id)
