"""Batches that come as files, their steps, and what callers can do to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.support.servers import RedisServer
from tests.support.slices import Sliced, kill, take
from tests.support.turns import COST, Connect, intended, paid
from worker.contract.batch.batches import FINALIZE, VALIDATE, Slice
from worker.contract.batch.client import Deleted
from worker.contract.batch.entries import repeated
from worker.contract.batch.line_schemas import LineError, LineErrors, LineItem
from worker.contract.batch.steps import BatchSteps
from worker.contract.claims import Refused
from worker.contract.client import TurnClient
from worker.contract.errors import Conflict, InvalidInput, NotFound
from worker.contract.keys import Keys
from worker.contract.records import encode
from worker.contract.schemas import Batch, BatchItem, BatchRequest, BatchRow, BatchState, Caller, TurnFailure
from worker.contract.server.link import Argument

pytestmark = pytest.mark.anyio
BODY = msgspec.Raw(b'{"model":"m","messages":[]}')
WRONG = LineErrors(total=1, data=[LineError(code="invalid_json_line", message="no", line=1)])


def entries(count: int) -> list[bytes]:
    return [encode(LineItem(id=f"id-{number}", body=BODY)) for number in range(count)]


async def posted(client: TurnClient, **more: Any) -> Batch:
    upload = await client.files.begin("default", "q.jsonl", "batch")
    await upload.write(b"{}\n")
    file = await upload.seal()
    options = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **more}
    return await client.submit_batch(BatchRequest(input_file_id=file.file_id, **options))


async def step(client: TurnClient, batch: Batch, start: int) -> Slice:
    taken = await client.batches.claim(batch.batch_id, "t", intended(""))
    assert isinstance(taken, Slice), taken
    assert (taken.start, taken.items, taken.suspect) == (start, [], False)
    return taken


async def begun(client: TurnClient, stored: Sequence[bytes], **more: Any) -> Batch:
    """A batch whose lines are stored."""
    batch = await posted(client, **more)
    taken = await step(client, batch, VALIDATE)
    assert await client.batches.add_items(batch.batch_id, 0, stored) == len(stored)
    assert await BatchSteps(client.batches).begin(taken, len(stored), None) == "in_progress"
    return batch


async def next_slice(client: TurnClient, batch: Batch) -> Sliced:
    taken = await take(client.batches, batch.batch_id)
    assert isinstance(taken, Sliced), taken
    return taken


async def run(client: TurnClient, batch: Batch) -> None:
    """Answer everything but the steps."""
    while (await client.batch(batch.batch_id)).state is BatchState.IN_PROGRESS:
        await (await next_slice(client, batch)).answer_all()


async def close(client: TurnClient, batch: Batch) -> Batch:
    taken = await step(client, batch, FINALIZE)
    assert await BatchSteps(client.batches).close(taken, "file-o", "file-e")
    return await client.batch(batch.batch_id)


async def over(client: TurnClient, batch: Batch, server: RedisServer) -> None:
    """The batch's time is over."""
    server.ask("HSET", client.batches.keys.batch(batch.batch_id), "expires_at", 1)
    await client.batches.due(batch.batch_id)


async def test_a_file_is_validated_run_and_written(client: TurnClient) -> None:
    batch = await posted(client, metadata={"run": "1"})
    assert (batch.state, batch.total, batch.started_at) == (BatchState.VALIDATING, 0, None)
    assert await client.batches.waiting(batch.batch_id) == 1
    taken, steps = await step(client, batch, VALIDATE), BatchSteps(client.batches)
    assert await take(client.batches, batch.batch_id) == Refused("refused", "validate")
    assert await client.batches.waiting(batch.batch_id) == 0
    stored = entries(3)
    assert await client.batches.add_items(batch.batch_id, 0, stored[:2]) == 2
    assert await client.batches.add_items(batch.batch_id, 2, stored[2:]) == 3
    assert await steps.begin(taken, 4, None) == "missing"
    assert await steps.begin(taken, 3, None) == "in_progress"
    assert await steps.begin(taken, 3, None) == "", "a lost reply is asked for again"
    await run(client, batch)
    finalizing = await client.batch(batch.batch_id)
    assert (finalizing.state, finalizing.completed) == (BatchState.FINALIZING, 3)
    assert (finalizing.output_file_id, finalizing.finished_at) == (None, None)
    with pytest.raises(Conflict, match="finalizing"):
        await client.cancel_batch(batch.batch_id)
    done = await close(client, batch)
    assert (done.state, done.output_file_id, done.error_file_id) == ("completed", "file-o", "file-e")
    assert (await client.stats()).ready == 0
    rows = await client.results(batch.batch_id)
    assert [row.id for row in rows] == ["id-0", "id-1", "id-2"]
    assert all(row.response is not None and row.response.body == BODY for row in rows)


async def test_a_batch_with_wrong_lines_has_failed(client: TurnClient) -> None:
    batch = await posted(client)
    taken = await step(client, batch, VALIDATE)
    assert await BatchSteps(client.batches).begin(taken, 0, WRONG) == "failed"
    failed = await client.batch(batch.batch_id)
    assert (failed.state, failed.errors) == (BatchState.FAILED, WRONG)
    assert failed.finished_at is not None
    with pytest.raises(Conflict, match="failed"):
        await client.retry_batch(batch.batch_id)


async def test_a_step_that_died_is_given_to_another(client: TurnClient) -> None:
    batch, steps = await posted(client), BatchSteps(client.batches)
    first = await step(client, batch, VALIDATE)
    await client.batches.add_items(batch.batch_id, 0, entries(2))
    assert await kill(client.batches, batch.batch_id, VALIDATE) == "queued"
    second = await step(client, batch, VALIDATE)
    assert await client.batches.add_items(batch.batch_id, 0, entries(2)) == 2
    assert await steps.begin(first, 2, None) == ""
    assert await steps.begin(second, 2, None) == "in_progress"
    await run(client, batch)
    dead = await step(client, batch, FINALIZE)
    assert await client.batches.release(batch.batch_id, FINALIZE, dead.fence) == "queued"
    assert await steps.close(dead, "file-x", None) == ""
    assert (await close(client, batch)).output_file_id == "file-o"


async def test_rows_that_are_known_from_the_start(client: TurnClient) -> None:
    batch = await posted(client)
    taken = await step(client, batch, VALIDATE)
    row = BatchRow(index=1, id=None, status="error", error=TurnFailure("invalid_json_line", "line 2"))
    good = entries(3)
    stored = [good[0], b"!", good[2]]
    assert await client.batches.add_items(batch.batch_id, 0, stored, {1: encode(row)}) == 3
    assert await BatchSteps(client.batches).begin(taken, 3, None) == "in_progress"
    await run(client, batch)
    done = await close(client, batch)
    assert (done.total, done.completed, done.failed) == (3, 2, 1)
    told = [event async for _, event in client.batch_events(batch.batch_id)]
    assert [event.index for event in told if isinstance(event, BatchRow)] == [1, 0, 2]
    with pytest.raises(Conflict, match="no item"):
        await client.retry_batch(batch.batch_id)


async def test_lines_that_are_refused_take_no_slice(client: TurnClient) -> None:
    batch = await posted(client)
    taken, why = await step(client, batch, VALIDATE), TurnFailure("invalid_json_line", "wrong")
    rows = {n: encode(BatchRow(index=n, id=None, status="error", error=why)) for n in range(5)}
    await client.batches.add_items(batch.batch_id, 0, [*[b"!"] * 5, *entries(1)], rows)
    assert await BatchSteps(client.batches).begin(taken, 6, None) == "in_progress"
    assert (await next_slice(client, batch)).items == [5]


@pytest.mark.parametrize("held", ["nobody", "held", "dead"])
async def test_cancelling_while_lines_are_read(client: TurnClient, held: str) -> None:
    batch = await posted(client)
    taken = None if held == "nobody" else await step(client, batch, VALIDATE)
    cancelled = await client.cancel_batch(batch.batch_id)
    if taken is not None:
        assert cancelled.state is BatchState.CANCELLING
        if held == "held":
            assert await BatchSteps(client.batches).begin(taken, 0, None) == "cancelled"
        else:
            assert await kill(client.batches, batch.batch_id, VALIDATE) == "over"
    done = await client.batch(batch.batch_id)
    assert (done.state, done.output_file_id, done.error_file_id) == (BatchState.CANCELLED, None, None)
    with pytest.raises(Conflict, match="post it again"):
        await client.retry_batch(batch.batch_id)


async def test_cancelling_writes_what_there_is(client: TurnClient) -> None:
    batch = await begun(client, entries(4))
    taken = await next_slice(client, batch)
    assert (await client.cancel_batch(batch.batch_id)).state is BatchState.CANCELLING
    stored = await taken.store([taken.row(0)], over=True)
    assert (stored.state, stored.more) == ("cancelling", True), "the files are to be written"
    assert (await close(client, batch)).state is BatchState.CANCELLED
    assert (await client.cancel_batch(batch.batch_id)).state is BatchState.CANCELLED


async def test_when_its_time_is_over_what_was_asked_before_still_counts(
    client: TurnClient, server: RedisServer
) -> None:
    batch = await begun(client, entries(3))
    assert not await client.batches.due(batch.batch_id), "there is time left"
    await (await next_slice(client, batch)).answer_all()
    late = await next_slice(client, batch)
    await over(client, batch, server)
    assert (await client.batch(batch.batch_id)).state is BatchState.FINALIZING
    assert await take(client.batches, batch.batch_id) == Refused("refused", "finalizing")
    stored = await late.store([late.row(1)], calls=[paid(late.call_id(1))], over=True)
    assert (stored.accepted, stored.state, stored.more) == (True, "finalizing", True)
    done = await close(client, batch)
    assert (done.state, done.completed, done.failed) == (BatchState.EXPIRED, 2, 0)
    assert done.cost == 2 * COST, "what is paid has a row"
    again = await client.retry_batch(batch.batch_id)
    assert again.state is BatchState.IN_PROGRESS
    assert again.expires_at is not None
    assert again.expires_at > again.created_at + 86_000
    await run(client, batch)
    assert (await close(client, batch)).completed == 3


async def test_a_batch_without_files_ends_with_its_time(client: TurnClient, server: RedisServer) -> None:
    batch = await client.submit_batch(
        BatchRequest(items=[BatchItem(message="x")] * 2, completion_window="1h")
    )
    await over(client, batch, server)
    assert (await client.batch(batch.batch_id)).state is BatchState.EXPIRED
    await client.batches.due(batch.batch_id)
    assert (await client.stats()).ready == 0


async def test_duplicates_wait_for_the_first(client: TurnClient) -> None:
    first, last = entries(2)
    batch = await begun(client, [first, repeated(0, "id-1"), repeated(0, "id-2"), last])
    one = await next_slice(client, batch)
    for _ in range(2):
        waiting = await next_slice(client, batch)
        assert waiting.items == []
        assert (await waiting.store([], over=True)).accepted
    assert (await client.batch(batch.batch_id)).completed == 0
    await one.answer_all()
    part = await client.batch(batch.batch_id)
    assert (part.completed, part.saved_calls) == (3, 2)
    rows = await client.results(batch.batch_id)
    assert [(row.id, row.deduplicated, row.attempts) for row in rows] == [
        ("id-0", None, 1),
        ("id-1", 0, 0),
        ("id-2", 0, 0),
    ]
    assert [row.cost for row in rows] == [COST, 0, 0]


async def test_duplicates_of_what_failed_fail_and_are_run_again(client: TurnClient) -> None:
    batch = await begun(client, [entries(1)[0], repeated(0, "id-1")])
    first = await next_slice(client, batch)
    waiting = await next_slice(client, batch)
    await waiting.store([], over=True)
    await first.fail_all()
    done = await close(client, batch)
    assert (done.state, done.failed, done.saved_calls) == (BatchState.COMPLETED, 2, 0)
    await client.retry_batch(batch.batch_id)
    await _answer_rest(client, batch)
    again = await close(client, batch)
    assert (again.completed, again.failed, again.saved_calls) == (2, 0, 1)


async def _answer_rest(client: TurnClient, batch: Batch) -> None:
    while (await client.batch(batch.batch_id)).state is BatchState.IN_PROGRESS:
        taken = await next_slice(client, batch)
        await (taken.answer_all() if taken.items else taken.store([], over=True))


async def test_retrying_runs_what_failed_and_nothing_else(client: TurnClient) -> None:
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message=f"q{n}") for n in range(5)]))
    failing = {1, 3}
    while isinstance(taken := await take(client.batches, batch.batch_id), Sliced):
        await (taken.fail_all() if failing & set(taken.items) else taken.answer_all())
    done = await client.batch(batch.batch_id)
    assert (done.completed, done.failed) == (3, 2)
    keys, runs = client.batches.keys.of_batch(batch.batch_id), 1
    arguments: list[Argument] = [batch.batch_id, runs, "", 5_000]
    for _ in range(2):
        assert await client.connection.run("batch_retry", keys, arguments) == b"ok"
    assert len(await client.results(batch.batch_id)) == 5, "a row stays until its item is run again"
    seen = []
    while isinstance(taken := await take(client.batches, batch.batch_id), Sliced):
        seen += taken.items
        await taken.answer_all()
    assert seen == [1, 3]
    done = await client.batch(batch.batch_id)
    assert (done.state, done.completed, done.failed) == (BatchState.COMPLETED, 5, 0)
    with pytest.raises(Conflict, match="no item"):
        await client.retry_batch(batch.batch_id)


@pytest.mark.parametrize("died", [False, True])
async def test_a_batch_can_be_paused_while_its_lines_are_read(client: TurnClient, died: bool) -> None:
    batch = await posted(client)
    taken = await step(client, batch, VALIDATE)
    assert (await client.pause_batch(batch.batch_id)).paused_at is not None
    if died:
        await kill(client.batches, batch.batch_id, VALIDATE)
        assert ((await client.stats()).ready, await client.batches.waiting(batch.batch_id)) == (1, 1)
        taken = await step(client, batch, VALIDATE)
    await client.batches.add_items(batch.batch_id, 0, entries(2))
    assert await BatchSteps(client.batches).begin(taken, 2, None) == "in_progress"
    assert await take(client.batches, batch.batch_id) == Refused("refused", "paused")
    assert ((await client.stats()).ready, await client.batches.waiting(batch.batch_id)) == (0, 0)
    assert (await client.resume_batch(batch.batch_id)).paused_at is None
    assert (await client.stats()).ready == 1
    await run(client, batch)
    with pytest.raises(Conflict, match="finalizing"):
        await client.pause_batch(batch.batch_id)


async def test_what_was_resumed_while_its_lines_were_read_goes_on(client: TurnClient) -> None:
    batch = await posted(client)
    taken = await step(client, batch, VALIDATE)
    await client.pause_batch(batch.batch_id)
    assert (await client.resume_batch(batch.batch_id)).paused_at is None
    await client.batches.add_items(batch.batch_id, 0, entries(1))
    await BatchSteps(client.batches).begin(taken, 1, None)
    await run(client, batch)


async def test_a_paused_batch_hands_nothing_out(client: TurnClient) -> None:
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="x")] * 3))
    running = await next_slice(client, batch)
    for _ in range(2):
        assert (await client.pause_batch(batch.batch_id)).paused_at is not None
    assert await take(client.batches, batch.batch_id) == Refused("refused", "paused")
    assert (await client.stats()).ready == 0
    assert not (await running.store([running.row(0)], over=True)).more
    assert await client.batches.waiting(batch.batch_id) == 0
    for _ in range(2):
        assert (await client.resume_batch(batch.batch_id)).paused_at is None
    assert (await client.stats()).ready == 1
    await run(client, batch)
    with pytest.raises(Conflict, match="completed"):
        await client.pause_batch(batch.batch_id)


async def test_deleting_leaves_only_where_it_stood(client: TurnClient, server: RedisServer) -> None:
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="x")]))
    with pytest.raises(Conflict, match="cancel it first"):
        await client.delete_batch(batch.batch_id)
    await run(client, batch)
    await client.delete_batch(batch.batch_id)
    with pytest.raises(NotFound):
        await client.batch(batch.batch_id)
    assert await client.latest_batches() == []
    stood = client.batches.keys.stood("default", batch.batch_id)
    assert server.ask("KEYS", f"*{batch.batch_id}*") == [stood.encode()]


async def test_batches_are_listed_newest_first(client: TurnClient) -> None:
    made = [await client.submit_batch(BatchRequest(items=[BatchItem(message="x")])) for _ in range(5)]
    await client.of(Caller("other")).submit_batch(BatchRequest(items=[BatchItem(message="x")]))
    found: list[Batch] = []
    while page := await client.latest_batches(after=found[-1].batch_id if found else None, limit=2):
        found += page
    order = sorted(made, key=lambda batch: (batch.created_at, batch.batch_id), reverse=True)
    assert [batch.batch_id for batch in found] == [batch.batch_id for batch in order]


async def test_a_key_stands_for_one_batch(client: TurnClient) -> None:
    request = BatchRequest(items=[BatchItem(message="x")])
    first = await client.submit_batch(request, idempotency_key="k")
    again = await client.submit_batch(request, idempotency_key="k")
    assert (again.batch_id, first.replayed, again.replayed) == (first.batch_id, False, True)
    with pytest.raises(Conflict, match="another body"):
        await client.submit_batch(BatchRequest(items=[BatchItem(message="y")]), idempotency_key="k")
    other = await client.of(Caller("other")).submit_batch(request, idempotency_key="k")
    assert other.batch_id != first.batch_id


async def test_a_repetition_is_answered_also_when_its_file_is_gone(client: TurnClient) -> None:
    upload = await client.files.begin("default", "q.jsonl", "batch")
    await upload.write(b"{}\n")
    file = await upload.seal()
    request = BatchRequest(
        input_file_id=file.file_id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    first = await client.submit_batch(request, idempotency_key="k")
    await client.files.delete(file.file_id, "default")
    again = await client.submit_batch(request, idempotency_key="k")
    assert (again.batch_id, again.replayed) == (first.batch_id, True)
    with pytest.raises(Conflict, match="another body"):
        await client.submit_batch(msgspec.structs.replace(request, dedupe=True), idempotency_key="k")
    with pytest.raises(InvalidInput, match="there is no file"):
        await client.submit_batch(request, idempotency_key="other")


async def test_who_was_refused_is_told_when_there_is_work_again(connect: Connect) -> None:
    client = await connect(batch_window=1)
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="x")] * 3))
    running = await next_slice(client, batch)
    assert await take(client.batches, batch.batch_id) == Refused("refused", "window")
    stored = await running.store([running.row(0)], over=True)
    assert (stored.more, stored.left) == (True, True)
    running = await next_slice(client, batch)
    assert not (await running.store([running.row(1)], over=True)).left


async def test_a_batch_whose_file_is_not_there_is_refused(client: TurnClient) -> None:
    request = BatchRequest(
        input_file_id="file-00" + "0" * 20, endpoint="/v1/chat/completions", completion_window="24h"
    )
    with pytest.raises(InvalidInput, match="there is no file"):
        await client.submit_batch(request)


async def test_rows_are_told_as_they_come(client: TurnClient) -> None:
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message=f"q{n}") for n in range(3)]))
    slices = [await next_slice(client, batch) for _ in range(3)]
    events = client.batch_events(batch.batch_id)
    _, progress = await anext(events)
    assert isinstance(progress, Batch)
    for taken in reversed(slices):
        await taken.answer_all()
    found = [(number, event) async for number, event in events]
    rows = [(number, event.index) for number, event in found if isinstance(event, BatchRow)]
    assert rows == [(1, 2), (2, 1), (3, 0)]
    assert isinstance(found[-1][1], Batch)
    later = [event async for _, event in client.batch_events(batch.batch_id, after=2)]
    assert [event.index for event in later if isinstance(event, BatchRow)] == [0]


async def test_who_follows_a_batch_hears_that_it_was_deleted(client: TurnClient) -> None:
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="q")]))
    events = client.batch_events(batch.batch_id)
    await anext(events)
    await client.cancel_batch(batch.batch_id)
    await client.delete_batch(batch.batch_id)
    left = [event async for event in events]
    (number, gone) = left[-1]
    assert isinstance(gone, Deleted)
    assert (number, gone.batch.batch_id) == (0, batch.batch_id)
    with pytest.raises(NotFound):
        await anext(client.batch_events(batch.batch_id))


async def test_long_rows_are_read_some_at_a_time(client: TurnClient) -> None:
    """Also where many rows are the answer to one item."""
    long = BatchItem(message="a")
    batch = await client.submit_batch(
        BatchRequest(items=[long, *[BatchItem(message=f"{n}") for n in range(5)], long, long], dedupe=True)
    )
    while isinstance(taken := await take(client.batches, batch.batch_id), Sliced):
        rows = [msgspec.structs.replace(taken.row(n), answer="x" * 700_000) for n in taken.items]
        await taken.store(rows, over=True)
    read = [len(part) async for part in client.result_parts(batch.batch_id)]
    assert sum(read) == 8
    assert max(read) == 3
    assert [row.index for row in await client.results(batch.batch_id, after=1, limit=6)] == [1, 2, 3, 4, 5, 6]
    told = [event async for _, event in client.batch_events(batch.batch_id)]
    assert sorted(row.index for row in told if isinstance(row, BatchRow)) == list(range(8))
    assert len(await client.batches.arrived(batch.batch_id, 0)) == 3


async def test_long_lines_are_read_some_at_a_time_for_their_ids(client: TurnClient) -> None:
    body = msgspec.Raw(b'"' + b"x" * 700_000 + b'"')
    stored = [encode(LineItem(id=f"id-{number}", body=body)) for number in range(25)]
    batch = await begun(client, stored)
    await client.cancel_batch(batch.batch_id)
    taken = await step(client, batch, FINALIZE)
    steps = BatchSteps(client.batches)
    assert await steps.ids(taken, 2, 24) == [f"id-{number}" for number in range(2, 25)]
    items = [client.batches.keys.items(batch.batch_id)]
    assert len(await client.connection.run("batch_entries", items, [0, 24, 2_000_000])) == 10
    assert len(await client.connection.run("batch_entries", items, [0, 24, 10_000_000])) == 20


async def test_an_unopened_batch_disappears(client: TurnClient, server: RedisServer) -> None:
    """A key was reserved, and whoever did it died before the batch was there."""
    keys = Keys(client.settings.namespace)
    name = keys.batch("batch_00" + "0" * 20)
    answers = [await client.connection.run("batch_reserve", [name], [digest, 60_000]) for digest in "aab"]
    assert answers == [b"reserved", b"reserved", b"mismatch"]
    assert 0 < server.ask("PTTL", name) <= 60_000
