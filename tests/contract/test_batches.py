"""Batches: items in, slices out, every row once, whatever is repeated, crashes or comes late."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest

from aiforge.core.types import Usage
from tests.support.servers import RedisServer
from tests.support.slices import Sliced, kill, take
from tests.support.turns import COST, SUSPECT_AFTER, USAGE, Connect, intended, paid
from tests.support.waiting import eventually
from worker.contract.batch.entries import UPLOAD_BYTES
from worker.contract.claims import Refused
from worker.contract.client import TurnClient
from worker.contract.errors import Conflict, InvalidInput, NotFound
from worker.contract.schemas import (
    BATCH_VERSION,
    Batch,
    BatchItem,
    BatchRequest,
    BatchRow,
    BatchState,
    Caller,
    Lane,
)

pytestmark = pytest.mark.anyio


def request(count: int, *, model: str | None = None) -> BatchRequest:
    items = [BatchItem(message=f"question {number}", id=f"id-{number}") for number in range(count)]
    return BatchRequest(items=items, model=model)


async def finished(client: TurnClient, batch: Batch) -> Batch:
    """Run a batch to its end."""
    while isinstance(taken := await take(client.batches, batch.batch_id), Sliced):
        await taken.answer_all()
    return await client.batch(batch.batch_id)


async def test_a_batch_from_end_to_end(client: TurnClient) -> None:
    batch = await client.submit_batch(request(30, model="m"))
    assert (batch.state, batch.total, batch.completed) == (BatchState.IN_PROGRESS, 30, 0)
    assert (batch.started_at, batch.finished_at, batch.cost) == (None, None, Decimal(0))
    done = await finished(client, batch)
    assert (done.state, done.completed, done.failed) == (BatchState.COMPLETED, 30, 0)
    assert done.cost == 30 * COST
    assert done.usage == Usage(30 * USAGE.input_tokens, 30 * USAGE.output_tokens)
    assert done.finished_at is not None
    rows = await client.results(batch.batch_id)
    assert [(row.index, row.id) for row in rows] == [(number, f"id-{number}") for number in range(30)]
    assert [row.answer for row in rows] == [f"answer to question {number}" for number in range(30)]
    assert all(call.outcome == "ok" for call in await client.turns.calls(batch.batch_id))
    assert (await client.stats()).totals["openai", "m"]["usd"] == 30 * COST


async def test_as_many_workers_are_woken_as_can_help(connect: Connect) -> None:
    client = await connect(batch_window=4)
    await client.submit_batch(request(3))
    await eventually(lambda: depths(client, 3))
    await client.submit_batch(request(10))
    await eventually(lambda: depths(client, 4))
    await client.submit_batch(request(2))
    assert await depth(client) == 4, "all of them serve whoever is next"


async def depths(client: TurnClient, expected: int) -> bool:
    return await depth(client) == expected


async def depth(client: TurnClient) -> int:
    return (await client.stats()).depth[Lane.BATCH]


async def test_a_window_limits_what_runs(connect: Connect) -> None:
    client = await connect(batch_window=2)
    batch = await client.submit_batch(request(10))
    first = await running(client, batch)
    await running(client, batch)
    assert await take(client.batches, batch.batch_id) == Refused("refused", "window")
    assert await client.batches.waiting(batch.batch_id) == 0
    await first.answer_all()
    assert await client.batches.waiting(batch.batch_id) == 1
    await running(client, batch)


async def running(client: TurnClient, batch: Batch) -> Sliced:
    taken = await take(client.batches, batch.batch_id)
    assert isinstance(taken, Sliced), taken
    return taken


async def test_slices_grow_with_the_speed_of_items(connect: Connect) -> None:
    """A second's worth or a little more, at most ten, never so much that the window could not be filled."""
    client = await connect(batch_window=2)
    batch = await client.submit_batch(request(400))
    first = await running(client, batch)
    assert len(first.items) == 1
    await first.answer_all(latency_ms=50)
    assert len((await running(client, batch)).items) == 10
    usual = await client.submit_batch(request(400))
    await (await running(client, usual)).answer_all(latency_ms=510)
    assert len((await running(client, usual)).items) == 2
    slow = await client.submit_batch(request(400))
    await (await running(client, slow)).answer_all(latency_ms=2_000)
    assert len((await running(client, slow)).items) == 1
    small = await client.submit_batch(request(8))
    await (await running(client, small)).answer_all(latency_ms=1)
    assert len((await running(client, small)).items) == 2


async def test_a_repeated_claim_brings_the_same_slice(client: TurnClient) -> None:
    """The reply was lost and the connection asked again: no slice may be left that nobody knows of."""
    batch = await client.submit_batch(request(10))
    first = await client.batches.claim(batch.batch_id, "t", intended(""))
    again = await client.batches.claim(batch.batch_id, "t", intended(""))
    assert not isinstance(first, Refused)
    assert not isinstance(again, Refused)
    assert again._replace(waited=first.waited) == first
    assert (await client.stats()).running == 1
    other = await running(client, batch)
    assert other.taken.start == first.start + len(first.items)


async def test_every_row_lands_once(client: TurnClient) -> None:
    batch = await client.submit_batch(request(1))
    taken = await running(client, batch)
    row = taken.row(0)
    for _ in range(2):
        stored = await taken.store([row], calls=[paid(taken.call_id(0))])
        assert (stored.accepted, stored.state) == (True, "completed")
    assert (await taken.store([msgspec.structs.replace(row, answer="other")])).accepted
    assert (await taken.store([], over=True)).accepted
    done = await client.batch(batch.batch_id)
    assert (done.completed, done.cost) == (1, COST)
    assert [row.answer for row in await client.results(batch.batch_id)] == ["answer to question 0"]
    assert not (await taken.store([row], over=True)).accepted


async def test_failed_items_complete_a_batch(client: TurnClient) -> None:
    batch = await client.submit_batch(request(3))
    while isinstance(taken := await take(client.batches, batch.batch_id), Sliced):
        await taken.fail_all()
    done = await client.batch(batch.batch_id)
    assert (done.state, done.completed, done.failed) == (BatchState.COMPLETED, 0, 3)
    assert [row.status for row in await client.results(batch.batch_id)] == ["error"] * 3


async def test_results_end_before_the_first_open_row(client: TurnClient) -> None:
    batch = await client.submit_batch(request(4))
    first, second, third = [await running(client, batch) for _ in range(3)]
    await third.answer_all()
    assert await client.results(batch.batch_id) == []
    await first.answer_all()
    assert [row.index for row in await client.results(batch.batch_id)] == [0]
    await second.answer_all()
    assert [row.index for row in await client.results(batch.batch_id)] == [0, 1, 2]
    assert [row.index for row in await client.results(batch.batch_id, after=1, limit=1)] == [1]
    assert await client.results(batch.batch_id, after=4) == []


async def test_an_unpriced_item_is_counted_and_not_free(client: TurnClient) -> None:
    batch = await client.submit_batch(request(2))
    for cost in (None, COST):
        taken = await running(client, batch)
        (index,) = taken.items
        row = msgspec.structs.replace(taken.row(index), cost=cost)
        await taken.store([row], calls=[paid(taken.call_id(index), cost=cost)], over=True)
    done = await client.batch(batch.batch_id)
    assert (done.cost, done.unpriced_calls) == (COST, 1)


async def test_a_slice_that_is_handed_back_is_done_again(connect: Connect) -> None:
    client = await connect(batch_window=2)
    batch = await client.submit_batch(request(40))
    await (await running(client, batch)).answer_all(latency_ms=100)
    taken = await running(client, batch)
    assert len(taken.items) == 10
    done, *rest = taken.items
    await taken.store([taken.row(done)], calls=[paid(taken.call_id(done))])
    assert await taken.hand_back() == "queued"
    calls = await client.turns.calls(batch.batch_id)
    assert {call.outcome for call in calls} == {"ok"}, "a call that was never made has no row"
    again = await running(client, batch)
    assert again.items == rest
    assert not again.taken.suspect
    assert await taken.hand_back() == "refused"
    assert not (await taken.store([taken.row(rest[0])])).accepted
    assert (await finished(client, batch)).state is BatchState.IN_PROGRESS
    await again.answer_all()
    assert (await finished(client, batch)).completed == 40


async def test_a_batch_whose_budget_is_full_waits_until_it_has_room_or_is_resumed(client: TurnClient) -> None:
    batch = await client.submit_batch(request(10))
    first = (await running(client, batch)).taken
    await client.batches.release(batch.batch_id, first.start, first.fence, again_in=3_600)
    refused = await client.batches.claim(batch.batch_id, "t", intended(""))
    assert refused == Refused("refused", "budget")
    await client.pause_batch(batch.batch_id)
    await client.resume_batch(batch.batch_id)
    assert (await running(client, batch)).taken.start == first.start


async def test_a_batch_that_waits_for_its_own_calls_gives_out_the_next_slice(client: TurnClient) -> None:
    batch = await client.submit_batch(request(10))
    first = (await running(client, batch)).taken
    await client.batches.release(batch.batch_id, first.start, first.fence, again_in=0)
    assert (await running(client, batch)).taken.start == first.start


async def test_a_lease_that_was_renewed_meanwhile_is_not_taken(client: TurnClient) -> None:
    batch = await client.submit_batch(request(1))
    held = await running(client, batch)
    assert await client.batches.release(batch.batch_id, held.taken.start, None) == "refused"
    await held.answer_all()
    assert (await finished(client, batch)).completed == 1


async def test_a_batch_has_begun_with_its_first_slice(client: TurnClient) -> None:
    batch = await client.submit_batch(request(2))
    await running(client, batch)
    key = client.batches.keys.batch(batch.batch_id)
    await client.connection.command("HSET", key, "started_at", 5_000)
    await running(client, batch)
    assert (await client.batch(batch.batch_id)).started_at == 5.0


async def test_some_crashes_make_single_suspects(connect: Connect) -> None:
    client = await connect(batch_window=1)
    batch = await client.submit_batch(request(8))
    await (await running(client, batch)).answer_all(latency_ms=250)
    poison = (await running(client, batch)).items
    assert len(poison) == 4
    for crash in range(SUSPECT_AFTER):
        assert crash == 0 or (await running(client, batch)).items == poison
        assert await kill(client.batches, batch.batch_id, poison[0]) == "queued"
    for index in poison:
        alone = await running(client, batch)
        assert (alone.items, alone.taken.suspect) == ([index], True)
        await alone.answer_all()
    done = await finished(client, batch)
    assert (done.state, done.completed, done.failed) == (BatchState.COMPLETED, 8, 0)


async def test_a_suspect_whose_worker_dies_is_never_given_up(connect: Connect) -> None:
    client = await connect(batch_window=1, max_attempts=2)
    batch = await client.submit_batch(request(1))
    for crash in range(6):
        taken = await running(client, batch)
        assert (taken.items, taken.taken.suspect) == ([0], crash > 0)
        assert await kill(client.batches, batch.batch_id, 0) == "queued"
    await (await running(client, batch)).answer_all()
    assert (await finished(client, batch)).completed == 1


async def test_a_slice_that_others_gave_more_attempts_is_split_when_it_is_handed_back(
    connect: Connect,
) -> None:
    patient, strict = await connect(batch_window=1, max_attempts=9), await connect(max_attempts=2)
    batch = await patient.submit_batch(request(8))
    await (await running(patient, batch)).answer_all(latency_ms=250)
    several = await running(patient, batch)
    assert len(several.items) == 4
    await kill(patient.batches, batch.batch_id, several.items[0])
    together = await running(strict, batch)
    assert (together.items, together.taken.suspect) == (several.items, True)
    assert await together.hand_back() == "queued"
    assert (await running(strict, batch)).items == several.items[:1]


async def test_the_calls_of_one_claim(client: TurnClient) -> None:
    batch = await client.submit_batch(request(1))
    taken = await running(client, batch)
    first, second = paid(taken.call_id(0)), intended(taken.call_id(0, 2))
    await client.turns.ledger(batch.batch_id, "default", settled=[first], intended=[second])
    found = await client.batches.calls(taken.taken)
    assert [msgspec.structs.replace(call, attempt=None, at=None) for call in found] == [first, second]
    await taken.hand_back()
    again = await running(client, batch)
    assert [call.call_id for call in await client.batches.calls(again.taken)] == [again.call_id(0)]


async def test_of_a_dead_slice_only_the_item_under_way_has_a_lost_call(connect: Connect) -> None:
    """Its items are run one after the other: the later ones were never asked, and cost nothing."""
    client = await connect(batch_window=1)
    batch = await client.submit_batch(request(9))
    await (await running(client, batch)).answer_all(latency_ms=250)
    taken = await running(client, batch)
    first, second, *rest = taken.items
    assert len(rest) == 2
    await taken.store([taken.row(first)], calls=[paid(taken.call_id(first))])
    assert await kill(client.batches, batch.batch_id, first) == "queued"
    calls = {call.call_id: call.outcome for call in await client.turns.calls(batch.batch_id)}
    mine = {call_id: outcome for call_id, outcome in calls.items() if f".{taken.taken.token}." in call_id}
    assert mine == {taken.call_id(first): "ok", taken.call_id(second): "lost"}


async def test_lost_calls_of_a_dead_slice(client: TurnClient) -> None:
    batch = await client.submit_batch(request(1))
    taken = await running(client, batch)
    await client.turns.ledger(
        batch.batch_id, "default", settled=[paid(taken.call_id(0))], intended=[intended(taken.call_id(0, 2))]
    )
    await kill(client.batches, batch.batch_id, 0)
    outcomes = {call.call_id: call.outcome for call in await client.turns.calls(batch.batch_id)}
    assert outcomes == {taken.call_id(0): "ok", taken.call_id(0, 2): "lost"}
    assert not (await taken.store([taken.row(0)], calls=[paid(taken.call_id(0, 2))])).accepted
    assert {call.outcome for call in await client.turns.calls(batch.batch_id)} == {"ok"}


async def test_cancelling_lets_the_running_items_end(client: TurnClient) -> None:
    batch = await client.submit_batch(request(5))
    first, second = [await running(client, batch) for _ in range(2)]
    for _ in range(2):
        cancelled = await client.cancel_batch(batch.batch_id)
        assert cancelled.state is BatchState.CANCELLING
        assert cancelled.cancelled_at is not None
    assert (await client.stats()).ready == 0, "nobody is to be woken for it"
    assert await take(client.batches, batch.batch_id) == Refused("refused", "cancelling")
    assert await client.batches.waiting(batch.batch_id) == 0
    await first.answer_all()
    assert await second.hand_back() == "over"
    done = await client.batch(batch.batch_id)
    assert (done.state, done.completed) == (BatchState.CANCELLED, 1)
    assert [row.index for row in await client.results(batch.batch_id)] == [0]
    assert (await client.stats()).ready == 0


async def test_a_cancelled_batch_hides_no_answer_behind_a_hole(client: TurnClient) -> None:
    batch = await client.submit_batch(request(40))
    slices = [await running(client, batch) for _ in range(9)]
    answered = [index for taken in (slices[1], slices[4], slices[8]) for index in taken.items]
    for taken in (slices[1], slices[4], slices[8]):
        await taken.answer_all()
    assert await client.results(batch.batch_id) == [], "the first is still running"
    await client.cancel_batch(batch.batch_id)
    for taken in slices:
        await taken.hand_back()
    assert (await client.batch(batch.batch_id)).state is BatchState.CANCELLED
    rows = await client.results(batch.batch_id)
    assert [row.index for row in rows] == answered
    for limit in (1, 2, 3):
        found: list[int] = []
        while page := await client.results(batch.batch_id, after=found[-1] + 1 if found else 0, limit=limit):
            assert len(page) <= limit
            found += [row.index for row in page]
        assert found == answered


async def test_cancelling_a_batch_that_nobody_runs(client: TurnClient) -> None:
    batch = await client.submit_batch(request(5))
    assert (await client.cancel_batch(batch.batch_id)).state is BatchState.CANCELLED
    assert (await client.cancel_batch(batch.batch_id)).state is BatchState.CANCELLED
    done = await finished(client, await client.submit_batch(request(2)))
    with pytest.raises(Conflict, match="completed"):
        await client.cancel_batch(done.batch_id)


async def test_a_batch_of_a_newer_version_is_left_alone(client: TurnClient, server: RedisServer) -> None:
    batch = await client.submit_batch(request(1))
    server.ask("HSET", client.batches.keys.batch(batch.batch_id), "version", BATCH_VERSION + 1)
    assert await take(client.batches, batch.batch_id) == Refused("newer", "")
    assert (await client.stats()).ready == 1


async def test_other_tenants_and_ids_have_no_batch(client: TurnClient) -> None:
    batch = await client.of(Caller("a")).submit_batch(request(1))
    for batch_id in (batch.batch_id, "batch_00" + "0" * 20, "../x", ""):
        with pytest.raises(NotFound):
            await client.batch(batch_id)
        with pytest.raises(NotFound):
            await client.results(batch_id)
        with pytest.raises(NotFound):
            await client.cancel_batch(batch_id)
    unknown = await client.batches.claim("batch_00" + "0" * 20, "t", intended(""))
    assert unknown == Refused("gone", "")


async def test_many_items_are_stored_in_parts(client: TurnClient, server: RedisServer) -> None:
    batch = await client.submit_batch(request(2_500))
    assert server.ask("LLEN", client.batches.keys.items(batch.batch_id)) == 2_500
    assert server.ask("PTTL", client.batches.keys.items(batch.batch_id)) == -1


async def test_large_items_are_stored_in_parts(client: TurnClient, server: RedisServer) -> None:
    """No call is so long that it could not be made in time."""
    server.ask("CONFIG", "RESETSTAT")
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="x" * 250_000)] * 60))
    assert server.ask("LLEN", client.batches.keys.items(batch.batch_id)) == 60
    pushes = server.ask("INFO", "commandstats")["cmdstat_rpush"]["calls"]
    assert pushes == -(-15_000_000 // UPLOAD_BYTES)


async def test_an_upload_that_is_not_opened_disappears(client: TurnClient, server: RedisServer) -> None:
    keys, batch_id = client.batches.keys, "batch_00" + "0" * 20
    items = keys.items(batch_id)
    parts = [(0, "ab"), (0, "ab"), (2, "c"), (1, "bc")]
    stored = [
        await client.connection.run(
            "batch_items",
            [items, keys.rows(batch_id), keys.talks(batch_id), keys.order(batch_id)],
            [offset, 60_000, len(part), 0, *part],
        )
        for offset, part in parts
    ]
    assert stored == [2, 2, 3, 3]
    assert 0 < server.ask("PTTL", items) <= 60_000


async def test_a_finished_batch_goes_after_its_time(connect: Connect, server: RedisServer) -> None:
    client = await connect(batch_ttl_seconds=100)
    done = await finished(client, await client.submit_batch(request(2)))
    keys = client.batches.keys
    for name in (keys.batch, keys.items, keys.rows, keys.ledger):
        assert 99_000 < server.ask("PTTL", name(done.batch_id)) <= 100_000


async def test_after_a_retry_each_row_is_told_once(client: TurnClient) -> None:
    batch = await client.submit_batch(request(3))
    while isinstance(taken := await take(client.batches, batch.batch_id), Sliced):
        await (taken.fail_all() if 1 in taken.items else taken.answer_all())
    failed = [event async for event in client.batch_events(batch.batch_id)]
    await client.retry_batch(batch.batch_id)
    while isinstance(taken := await take(client.batches, batch.batch_id), Sliced):
        await taken.answer_all()
    told = [event async for event in client.batch_events(batch.batch_id)]
    rows = [(event.index, event.status) for _, event in told if isinstance(event, BatchRow)]
    assert rows == [(0, "ok"), (2, "ok"), (1, "ok")]
    last = failed[-1][0]
    behind = [event async for event in client.batch_events(batch.batch_id, after=last)]
    assert [event.index for _, event in behind if isinstance(event, BatchRow)] == [1]


async def test_a_batch_says_until_when_it_waits_for_a_budget(client: TurnClient) -> None:
    batch = await client.submit_batch(request(1))
    held = await take(client.batches, batch.batch_id)
    assert isinstance(held, Sliced)
    one = held.taken
    await client.batches.release(batch.batch_id, one.start, one.fence, again_in=3_600)
    waits = (await client.batch(batch.batch_id)).waits_until
    assert waits is not None
    assert 3_500 < waits - batch.created_at < 3_700
    await client.pause_batch(batch.batch_id)
    assert (await client.resume_batch(batch.batch_id)).waits_until is None
    held = await take(client.batches, batch.batch_id)
    assert isinstance(held, Sliced)
    one = held.taken
    await client.batches.release(batch.batch_id, one.start, one.fence, again_in=0)
    assert (await client.batch(batch.batch_id)).waits_until is None


@pytest.mark.parametrize(
    ("metadata", "param"),
    [
        ({f"k{number}": "" for number in range(17)}, "metadata"),
        ({"k" * 65: "v"}, "metadata." + "k" * 64),
        ({"": "v"}, "metadata."),
        ({"k": "v" * 513}, "metadata.k"),
    ],
)
async def test_metadata_is_no_more_than_openai_has(
    client: TurnClient, metadata: dict[str, str], param: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await client.submit_batch(BatchRequest(items=[BatchItem(message="x")], metadata=metadata))
    assert refused.value.param == param
    most = {f"{number:02}" + "k" * 62: "v" * 512 for number in range(16)}
    await client.submit_batch(BatchRequest(items=[BatchItem(message="x")], metadata=most))


async def test_a_list_of_batches_goes_on_from_one_that_was_deleted(client: TurnClient) -> None:
    made = [await client.submit_batch(request(1)) for _ in range(3)]
    for batch in made:
        await client.cancel_batch(batch.batch_id)
    seen: list[str] = []
    while page := await client.latest_batches(after=seen[-1] if seen else None, limit=1):
        seen.append(page[0].batch_id)
        await client.delete_batch(seen[-1])
    assert sorted(seen) == sorted(batch.batch_id for batch in made)
