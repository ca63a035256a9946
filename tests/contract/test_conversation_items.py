"""Items of a batch that continue conversations: in order within one, side by side across."""

from __future__ import annotations

from decimal import Decimal

import pytest

from aiforge.core.types import Usage
from tests.support.slices import Sliced, kill, take
from tests.support.turns import COST, SUSPECT_AFTER, USAGE, Connect, intended, paid
from worker.contract.batch.batches import Slice, Stored
from worker.contract.claims import Refused
from worker.contract.client import TurnClient
from worker.contract.errors import InvalidInput
from worker.contract.schemas import Batch, BatchItem, BatchRequest, BatchState

pytestmark = pytest.mark.anyio
NOTHING = Refused("refused", "handed out")


async def submit(client: TurnClient, *conversations: str | None) -> Batch:
    """A batch with one item for each, of that conversation or of none."""
    items = [BatchItem(message="Go on", conversation=name) for name in conversations]
    return await client.submit_batch(BatchRequest(items=items))


async def taken(client: TurnClient, batch: Batch, index: int) -> Sliced:
    """The next slice, which is this one item."""
    found = await take(client.batches, batch.batch_id)
    assert isinstance(found, Sliced), found
    assert found.items == [index]
    return found


async def answer(client: TurnClient, sliced: Sliced, *calls_of_turn: str) -> Stored:
    (index,) = sliced.items
    held = sliced.taken
    return await client.batches.store(
        held.batch_id, held.start, held.fence, [sliced.row(index)], calls=[], over=True,
        turn_calls=[paid(call) for call in calls_of_turn],
    )  # fmt: skip


async def test_in_order_within_and_side_by_side_across(client: TurnClient) -> None:
    batch = await submit(client, "a", "a", "b", "a", "b", None)
    a, b = await taken(client, batch, 0), await taken(client, batch, 2)
    alone = await taken(client, batch, 5)
    assert await take(client.batches, batch.batch_id) == NOTHING
    assert (await answer(client, b)).more
    b = await taken(client, batch, 4)
    assert await take(client.batches, batch.batch_id) == NOTHING
    await answer(client, a)
    a = await taken(client, batch, 1)
    await answer(client, a)
    for last in (await taken(client, batch, 3), b, alone):
        await answer(client, last)
    done = await client.batch(batch.batch_id)
    assert (done.state, done.completed) == (BatchState.COMPLETED, 6)


async def test_after_one_that_fails_its_conversation_goes_on(client: TurnClient) -> None:
    batch = await submit(client, "a", "a")
    await (await taken(client, batch, 0)).fail_all()
    await answer(client, await taken(client, batch, 1))
    done = await client.batch(batch.batch_id)
    assert (done.state, done.completed, done.failed) == (BatchState.COMPLETED, 1, 1)


async def test_who_comes_after_one_whose_worker_died_still_waits(client: TurnClient) -> None:
    batch = await submit(client, "a", "a")
    for _ in range(SUSPECT_AFTER + 1):
        await taken(client, batch, 0)
        assert await take(client.batches, batch.batch_id) == NOTHING
        assert await kill(client.batches, batch.batch_id, 0) == "queued"
    first = await taken(client, batch, 0)
    assert await first.hand_back() == "queued"
    await answer(client, await taken(client, batch, 0))
    await taken(client, batch, 1)
    assert await take(client.batches, batch.batch_id) == NOTHING


async def test_a_repeated_claim_brings_the_same_item(client: TurnClient) -> None:
    batch = await submit(client, "a", "b")
    first = await client.batches.claim(batch.batch_id, "t", intended(""))
    again = await client.batches.claim(batch.batch_id, "t", intended(""))
    assert isinstance(first, Slice)
    assert isinstance(again, Slice)
    assert again._replace(waited=first.waited) == first


async def test_a_turns_calls_are_summed_with_its_row_and_counted_elsewhere(client: TurnClient) -> None:
    batch = await submit(client, "a")
    first = await taken(client, batch, 0)
    assert await client.turns.calls(batch.batch_id) == []
    await answer(client, first, "x.1", "x.2")
    await answer(client, first, "x.1", "x.2")
    done = await client.batch(batch.batch_id)
    assert done.cost == 2 * COST > Decimal(0)
    assert done.usage == Usage(2 * USAGE.input_tokens, 2 * USAGE.output_tokens)
    assert (await client.stats()).totals == {}


async def test_a_retry_is_another_turn_and_in_order(client: TurnClient) -> None:
    batch = await submit(client, "a", "a", "a")
    for index in range(3):
        found = await taken(client, batch, index)
        assert found.taken.retried == 0
        await (answer(client, found) if index == 1 else found.fail_all())
    await client.retry_batch(batch.batch_id)
    found = await taken(client, batch, 0)
    assert found.taken.retried == 1
    assert await found.hand_back() == "queued"
    for index in (2, 0):
        found = await taken(client, batch, index)
        assert found.taken.retried == 1
        await answer(client, found)
    done = await client.batch(batch.batch_id)
    assert (done.state, done.completed, done.failed) == (BatchState.COMPLETED, 3, 0)


async def test_what_a_cancellation_left_waits_in_order_again(client: TurnClient) -> None:
    batch = await submit(client, "a", "a", "a", "a")
    first = await taken(client, batch, 0)
    assert await take(client.batches, batch.batch_id) == NOTHING
    await client.cancel_batch(batch.batch_id)
    await answer(client, first)
    await client.retry_batch(batch.batch_id)
    for index in (1, 2, 3):
        found = await taken(client, batch, index)
        assert await take(client.batches, batch.batch_id) == NOTHING
        await answer(client, found)
    assert (await client.batch(batch.batch_id)).state is BatchState.COMPLETED


async def test_behind_many_items_of_one_conversation_the_next_one_is_found(connect: Connect) -> None:
    client = await connect()
    batch = await submit(client, *["a"] * 2_500, "b")
    await taken(client, batch, 0)
    await taken(client, batch, 2_500)
    assert await client.batches.waiting(batch.batch_id) == 0


@pytest.mark.parametrize("conversation", ["", "..", "no spaces", "x" * 129])
async def test_a_conversation_needs_a_name(client: TurnClient, conversation: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await submit(client, None, conversation)
    assert refused.value.param == "items[1].conversation"


async def test_the_batchs_own_limit_of_cost_does_not_hold_turns(client: TurnClient) -> None:
    items = [BatchItem(message="x", conversation="a")]
    with pytest.raises(InvalidInput, match="not by max_cost") as refused:
        await client.submit_batch(BatchRequest(items=items, max_cost=Decimal(1)))
    assert refused.value.param == "max_cost"
