"""The slice runner against a real store and a real provider."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from aiforge.core.types import Usage
from aiforge.testing import FakeProvider, Gate, Reply, failure
from tests.support.runners import LocalWorker
from tests.support.slices import Sliced, kill, take
from tests.support.turns import Connect
from tests.support.waiting import eventually
from worker.contract.batch.share import HEAD_START, Share
from worker.contract.claims import Refused
from worker.contract.client import TurnClient
from worker.contract.schemas import Batch, BatchItem, BatchRequest, BatchState, Lane

pytestmark = pytest.mark.anyio


async def submit(client: TurnClient, count: int) -> Batch:
    items = [BatchItem(message=f"question {number}", id=f"id-{number}") for number in range(count)]
    return await client.submit_batch(BatchRequest(items=items, system_prompt="Be brief."))


async def run_all(client: TurnClient, worker: LocalWorker, batch: Batch) -> Batch:
    while (batch := await client.batch(batch.batch_id)).state is BatchState.IN_PROGRESS:
        await worker.slices.run(batch.batch_id)
    return batch


async def outcomes(client: TurnClient, batch: Batch) -> dict[str, int]:
    found = [call.outcome for call in await client.turns.calls(batch.batch_id)]
    return {outcome: found.count(outcome) for outcome in sorted(set(found))}


async def test_a_batch_is_answered(client: TurnClient, provider: FakeProvider) -> None:
    batch = await submit(client, 12)
    async with LocalWorker(client, provider) as worker:
        done = await run_all(client, worker, batch)
    assert (done.state, done.completed, done.failed) == (BatchState.COMPLETED, 12, 0)
    rows = await client.results(batch.batch_id)
    assert [row.id for row in rows] == [f"id-{number}" for number in range(12)]
    assert all(row.answer and row.attempts == 1 and row.latency_ms for row in rows)
    assert len(provider.calls) == 12
    assert not any(call.stream for call in provider.calls)
    assert [call.messages[0]["content"] for call in provider.calls] == ["Be brief."] * 12
    used = sum((call.reported for call in provider.calls if call.reported), Usage())
    assert (done.usage.input_tokens, done.usage.output_tokens) == (used.input_tokens, used.output_tokens)
    assert done.cost == sum((row.cost or 0 for row in rows), Decimal(0)) > 0
    assert await outcomes(client, batch) == {"ok": 12}
    assert {call.call_id for call in provider.calls} == {
        call.call_id for call in await client.turns.calls(batch.batch_id)
    }


async def test_an_item_that_fails_fails_alone(client: TurnClient, provider: FakeProvider) -> None:
    provider.when("question 1", failure(400))
    provider.when("question 2", failure(500), times=1)
    batch = await submit(client, 4)
    async with LocalWorker(client, provider) as worker:
        done = await run_all(client, worker, batch)
    assert (done.completed, done.failed) == (3, 1)
    rows = await client.results(batch.batch_id)
    assert [row.status for row in rows] == ["ok", "error", "ok", "ok"]
    assert rows[1].error is not None
    assert rows[1].error.code == "provider_refused"
    assert (rows[1].answer, rows[1].cost, rows[2].attempts) == (None, Decimal(0), 2)
    assert await outcomes(client, batch) == {"error": 2, "ok": 3}


async def test_the_next_slice_is_asked_for(connect: Connect, provider: FakeProvider) -> None:
    client = await connect(batch_window=1)
    batch = await submit(client, 3)
    await eventually(lambda: depth(client, 1))
    async with LocalWorker(client, provider) as worker:
        await worker.slices.run(batch.batch_id)
        await eventually(lambda: depth(client, 2))
        await run_all(client, worker, batch)
        before = (await client.stats()).depth[Lane.BATCH]
        await worker.slices.run(batch.batch_id)
    assert (await client.stats()).depth[Lane.BATCH] == before


async def depth(client: TurnClient, expected: int) -> bool:
    return (await client.stats()).depth[Lane.BATCH] == expected


async def grown(client: TurnClient, worker: LocalWorker, batch: Batch) -> None:
    """Run the first slice, so that the next ones hold several items."""
    await worker.slices.run(batch.batch_id)
    assert (await client.batch(batch.batch_id)).completed == 1


async def test_a_slice_in_the_middle_is_handed_back(connect: Connect, provider: FakeProvider) -> None:
    client = await connect(batch_window=1)
    batch = await submit(client, 9)
    provider.when("question 2", Reply(chunks=[Gate("never"), "x"]), times=1)
    async with LocalWorker(client, provider) as worker:
        await grown(client, worker, batch)
        running = worker.start_slice(batch.batch_id)
        await provider.wait_until_async(lambda: provider.calls[-1].question == "question 2")
        worker.leases.stop_all("handed_back")
        await running
    assert (await client.batch(batch.batch_id)).completed == 2
    assert await outcomes(client, batch) == {"aborted": 1, "ok": 2}
    async with LocalWorker(client, provider) as other:
        done = await run_all(client, other, batch)
    assert (done.completed, len(provider.calls)) == (9, 10)
    assert await outcomes(client, batch) == {"aborted": 1, "ok": 9}


async def test_a_slice_makes_way_for_a_batch_that_has_just_come(
    connect: Connect, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has not done goes back, and its slot is the newcomer's."""
    monkeypatch.setattr("worker.running.sharing.FRESH_SECONDS", 0.0)
    client = await connect(batch_window=1)
    batch = await submit(client, 25)
    provider.when("question 3", Reply(chunks=[Gate("go"), "x"]))
    async with LocalWorker(client, provider) as worker:
        for _ in range(HEAD_START):  # after which it is no newcomer itself
            await Share(client.connection, client.settings).pick()
        await grown(client, worker, batch)
        running = worker.start_slice(batch.batch_id)
        await provider.wait_until_async(lambda: provider.calls[-1].question == "question 3")
        other = await client.submit_batch(BatchRequest(items=[BatchItem(message="newcomer")]))
        provider.open("go")
        await running
        assert 4 <= (await client.batch(batch.batch_id)).completed < 11
        await worker.slices.run(batch.batch_id)
        assert (await client.batch(other.batch_id)).completed == 1
        assert set(await outcomes(client, batch)) == {"ok"}
        done = await run_all(client, worker, batch)
    assert (done.completed, len(provider.calls)) == (25, 26)
    assert await outcomes(client, batch) == {"ok": 25}


async def test_after_a_cancellation_no_item_begins(connect: Connect, provider: FakeProvider) -> None:
    client = await connect(batch_window=1)
    batch = await submit(client, 9)
    provider.when("question 2", Reply(chunks=[Gate("go"), "x"]))
    async with LocalWorker(client, provider) as worker:
        await grown(client, worker, batch)
        running = worker.start_slice(batch.batch_id)
        await provider.wait_until_async(lambda: provider.calls[-1].question == "question 2")
        assert (await client.cancel_batch(batch.batch_id)).state is BatchState.CANCELLING
        provider.open("go")
        await running
    done = await client.batch(batch.batch_id)
    assert (done.state, done.completed, len(provider.calls)) == (BatchState.CANCELLED, 3, 3)
    assert await outcomes(client, batch) == {"ok": 3}


async def test_a_superseded_slice_stops(connect: Connect, provider: FakeProvider) -> None:
    client = await connect(batch_window=2)
    batch = await submit(client, 9)
    provider.when("question 2", Reply(chunks=[Gate("go"), "late"]), times=1)
    async with LocalWorker(client, provider) as slow, LocalWorker(client, provider) as other:
        await grown(client, slow, batch)
        running = slow.start_slice(batch.batch_id)
        await provider.wait_until_async(lambda: provider.calls[-1].question == "question 2")
        assert await kill(client.batches, batch.batch_id, 1) == "queued"
        done = await run_all(client, other, batch)
        provider.open("go")
        await running
    assert done.completed == 9
    assert (await client.results(batch.batch_id))[2].answer != "late"
    assert await outcomes(client, batch) == {"ok": 10}
    calls = await client.turns.calls(batch.batch_id)
    assert (await client.batch(batch.batch_id)).cost == sum(call.cost or 0 for call in calls) > done.cost


async def test_a_draining_worker_takes_no_slice(client: TurnClient, provider: FakeProvider) -> None:
    batch = await submit(client, 2)
    async with LocalWorker(client, provider) as worker:
        worker.draining = True
        await worker.slices.run(batch.batch_id)
        await eventually(lambda: depth(client, 3))
    assert (await client.batch(batch.batch_id)).started_at is None


async def test_a_slice_whose_items_are_all_done(client: TurnClient, provider: FakeProvider) -> None:
    """Its last worker died between the last row and the hand-back."""
    batch = await submit(client, 2)
    first = await take(client.batches, batch.batch_id)
    assert isinstance(first, Sliced)
    await first.store([first.row(0)])
    await kill(client.batches, batch.batch_id, 0)
    async with LocalWorker(client, provider) as worker:
        done = await run_all(client, worker, batch)
    assert (done.completed, len(provider.calls)) == (2, 1)


async def wrong_file(client: TurnClient, **options: Any) -> Batch:
    """A batch of a file whose one line is none."""
    upload = await client.files.begin("default", "q.jsonl", "batch")
    await upload.write(b"no JSON\n")
    file = await upload.seal()
    return await client.submit_batch(
        BatchRequest(
            input_file_id=file.file_id, endpoint="/v1/chat/completions", completion_window="24h", **options
        )
    )


async def test_a_file_that_is_being_validated_stays_a_newcomer(
    client: TurnClient, provider: FakeProvider
) -> None:
    """Slots that come too early for its items take nothing of what it may expect."""
    batch = await wrong_file(client)
    share = Share(client.connection, client.settings)
    assert not isinstance(await take(client.batches, batch.batch_id), Refused)
    async with LocalWorker(client, provider) as worker:
        await worker.slices.run(batch.batch_id)
    assert await share.newcomers() == {}
    await share.join(batch.batch_id, "default")
    assert await share.newcomers() == {batch.batch_id: HEAD_START}


async def test_a_file_without_a_right_line_is_finished_by_the_next_who_is_woken(
    client: TurnClient, provider: FakeProvider
) -> None:
    batch = await wrong_file(client, metadata={"on_invalid": "skip"})
    async with LocalWorker(client, provider) as worker:
        await worker.slices.run(batch.batch_id)
        assert (await client.batch(batch.batch_id)).state is BatchState.FINALIZING
        await eventually(lambda: depth(client, 2))
