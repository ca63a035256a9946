"""An erased conversation leaves nothing in batches: neither text nor an item that would bring it back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aiforge.testing import FakeProvider
from tests.contract.test_batch_steps import close, posted, step
from tests.contract.test_erase import MARK, everything
from tests.support.runners import LocalWorker
from tests.support.servers import RedisServer
from tests.support.slices import Sliced, take
from worker.contract.batch.batches import VALIDATE
from worker.contract.batch.entries import continued
from worker.contract.batch.erasing import BatchErasure
from worker.contract.batch.item_places import item_place
from worker.contract.batch.steps import BatchSteps
from worker.contract.claims import Refused
from worker.contract.client import TurnClient
from worker.contract.errors import Conflict, NotFound
from worker.contract.schemas import Batch, BatchItem, BatchRequest, BatchState, Caller
from worker.running.item_turns import ConversationErasedError

pytestmark = pytest.mark.anyio
ERASED = "conversation_erased"


async def submit(client: TurnClient, *conversations: str | None) -> Batch:
    items = [
        BatchItem(id=f"id-{index}", message=MARK if name == "c" else "Go on", conversation=name)
        for index, name in enumerate(conversations)
    ]
    return await client.submit_batch(BatchRequest(items=items))


def lines(conversations: Sequence[str]) -> list[bytes]:
    """Lines as they are stored."""
    latest: dict[str, int] = {}
    found = []
    for index, name in enumerate(conversations):
        item = BatchItem(id=f"id-{index}", message=f"{MARK} {index}", conversation=name)
        found.append(continued(latest.get(name), item))
        latest[name] = index
    return found


async def taken(client: TurnClient, batch: Batch, index: int) -> Sliced:
    found = await take(client.batches, batch.batch_id)
    assert isinstance(found, Sliced), found
    assert found.items == [index]
    return found


async def store(client: TurnClient, held: Sliced) -> bool:
    one = held.taken
    rows = [held.row(index) for index in held.items]
    stored = await client.batches.store(one.batch_id, one.start, one.fence, rows, calls=[], over=True)
    return stored.accepted


async def codes(client: TurnClient, batch: Batch) -> list[tuple[str | None, str | None]]:
    rows = await client.results(batch.batch_id)
    return [(row.id, row.error.code if row.error else None) for row in rows]


async def test_a_finished_item_leaves_no_text(client: TurnClient, server: RedisServer) -> None:
    batch = await submit(client, "c", "d", "c")
    for index in (0, 1, 2):
        await store(client, await taken(client, batch, index))
    assert MARK.encode() in everything(server)
    receipt = await client.erase("c")
    assert (receipt.items, receipt.turns, receipt.files) == (2, 0, [])
    assert MARK.encode() not in everything(server)
    assert await codes(client, batch) == [("id-0", ERASED), ("id-1", None), ("id-2", ERASED)]
    done = await client.batch(batch.batch_id)
    assert (done.state, done.completed, done.failed) == (BatchState.COMPLETED, 1, 2)
    with pytest.raises(NotFound):
        await client.erase("c")
    with pytest.raises(Conflict, match="no item"):
        await client.retry_batch(batch.batch_id)


async def test_what_waits_and_what_runs_is_not_run_any_more(client: TurnClient, server: RedisServer) -> None:
    batch = await submit(client, "c", "d", "c", "c")
    running = await taken(client, batch, 0)
    other = await taken(client, batch, 1)
    receipt = await client.erase("c")
    assert receipt.items == 3
    assert await store(client, running), "its row is there already, and stays"
    assert await take(client.batches, batch.batch_id) == Refused("refused", "handed out")
    assert await store(client, other)
    done = await client.batch(batch.batch_id)
    assert (done.state, done.completed, done.failed) == (BatchState.COMPLETED, 1, 3)
    assert [code for _, code in await codes(client, batch)] == [ERASED, None, ERASED, ERASED]
    assert MARK.encode() not in everything(server)


async def test_a_batch_of_one_conversation_ends_with_it(client: TurnClient) -> None:
    batch = await submit(client, "c", "c")
    await client.erase("c")
    done = await client.batch(batch.batch_id)
    assert (done.state, done.failed) == (BatchState.COMPLETED, 2)
    assert len([event async for event in client.batch_events(batch.batch_id)]) == 3


async def test_an_item_that_a_worker_has_taken_meets_a_tombstone(
    client: TurnClient, provider: FakeProvider
) -> None:
    batch = await submit(client, "c")
    held = (await taken(client, batch, 0)).taken
    await client.erase("c")
    async with LocalWorker(client, provider) as worker:
        ((index, item),) = held.items
        assert isinstance(item, BatchItem)
        with pytest.raises(ConversationErasedError):
            await worker.slices._turns.run(held, index, item)
    with pytest.raises(NotFound):
        await client.conversation("c")
    assert len(provider.calls) == 0


async def test_what_failed_is_not_run_again(client: TurnClient) -> None:
    batch = await submit(client, "c", "d")
    for index in (0, 1):
        await (await taken(client, batch, index)).fail_all()
    await client.erase("c")
    await client.retry_batch(batch.batch_id)
    await store(client, await taken(client, batch, 1))
    done = await client.batch(batch.batch_id)
    assert (done.state, done.completed, done.failed) == (BatchState.COMPLETED, 1, 1)


async def test_a_cancelled_batch_cannot_be_hung_by_its_retry(client: TurnClient, server: RedisServer) -> None:
    batch = await submit(client, "c", "c")
    await client.cancel_batch(batch.batch_id)
    assert (await client.erase("c")).items == 2
    with pytest.raises(Conflict, match="no item"):
        await client.retry_batch(batch.batch_id)
    assert server.ask("PTTL", client.batches.keys.rows(batch.batch_id)) > 0


async def test_lines_that_are_still_read_are_erased_as_they_come(
    client: TurnClient, server: RedisServer
) -> None:
    batch = await posted(client)
    validating = await step(client, batch, VALIDATE)
    stored = lines(["c", "d", "c", "c"])
    await client.batches.add_items(batch.batch_id, 0, stored[:1])
    receipt = await client.erase("c")
    assert (receipt.items, len(receipt.files)) == (1, 1)
    await client.batches.add_items(batch.batch_id, 1, stored[1:])
    assert await BatchSteps(client.batches).begin(validating, 4, None, turns=True) == "in_progress"
    await store(client, await taken(client, batch, 1))
    assert f"{MARK} 1".encode() in everything(server)
    for index in (0, 2, 3):
        assert f"{MARK} {index}".encode() not in everything(server)
    done = await close(client, batch)
    assert (done.completed, done.failed) == (1, 3)
    assert [code for _, code in await codes(client, batch)] == [ERASED, None, ERASED, ERASED]
    assert await client.batches.last_row(batch.batch_id) == 4, "each is told"


async def test_every_item_of_a_long_chain_is_found_and_a_repetition_finds_them_too(
    client: TurnClient,
) -> None:
    batch = await submit(client, *["c"] * 1_500)
    found = await BatchErasure(client.batches).erase("default", "c")
    again = await BatchErasure(client.batches).erase("default", "c")
    assert (found.items, again.items) == (1_500, 0)
    wanted = {item_place("default", "c", batch.batch_id, index, 0).turn_id for index in range(1_500)}
    assert set(found.turns) == set(again.turns) == wanted


async def test_another_tenants_items_stay(client: TurnClient) -> None:
    items = [BatchItem(message="mine", conversation="c")]
    batch = await client.of(Caller("other")).submit_batch(BatchRequest(items=items))
    with pytest.raises(NotFound):
        await client.erase("c")
    assert isinstance(await take(client.batches, batch.batch_id), Sliced)
