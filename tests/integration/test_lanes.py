"""Chats and batches in one worker: neither takes all of its slots."""

from __future__ import annotations

import pytest

from aiforge.testing import FakeProvider, Gate, Reply
from tests.support.processes import Start
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import BatchItem, BatchRequest, Lane, TurnRequest, TurnState

pytestmark = pytest.mark.anyio


async def test_a_batch_that_fills_its_slots_leaves_some_to_chats(
    client: TurnClient, provider: FakeProvider, worker_process: Start
) -> None:
    provider.when("item", Reply(chunks=["ok", Gate("items")]))
    worker_process(concurrency="10")
    items = [BatchItem(message=f"item {number}") for number in range(40)]
    batch = await client.submit_batch(BatchRequest(items=items))
    await eventually(lambda: calls_of(provider, 10), 30)
    for number in range(3):
        turn = await client.submit(TurnRequest(message=f"chat {number}"))
        found = await client.wait(turn.turn_id, 30)
        assert found.state is TurnState.COMPLETED
    assert (await client.batch(batch.batch_id)).completed == 0
    assert len(provider.calls) == 13, "no eleventh item has begun"
    assert (await client.stats()).depth[Lane.BATCH] > 0
    provider.open("items")
    await eventually(lambda: completed(client, batch.batch_id, 40), 30)


async def test_chats_have_no_more_slots_than_there_are(
    client: TurnClient, provider: FakeProvider, worker_process: Start
) -> None:
    provider.when("chat", Reply(chunks=["ok", Gate("chats")]))
    worker_process(concurrency="10")
    for number in range(12):
        await client.submit(TurnRequest(message=f"chat {number}"))
    await eventually(lambda: calls_of(provider, 10), 30)
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="item")]))
    await eventually(lambda: completed(client, batch.batch_id, 1), 30)
    assert len(provider.calls) == 11, "no eleventh chat has begun"
    provider.open("chats")
    await eventually(lambda: calls_of(provider, 13), 30)


async def calls_of(provider: FakeProvider, count: int) -> bool:
    return len(provider.calls) >= count


async def completed(client: TurnClient, batch_id: str, count: int) -> bool:
    return (await client.batch(batch_id)).completed == count
