"""Budgets of API keys: what is posted with a key counts to it, however it comes to run."""

from __future__ import annotations

from decimal import Decimal

import pytest

from aiforge.testing import FakeProvider
from tests.support.runners import LocalWorker
from tests.support.turns import Connect
from tests.worker.test_schedules import overdue
from worker.contract.calls.budget_limits import limit
from worker.contract.calls.budgets import Budget, BudgetStore
from worker.contract.client import TurnClient
from worker.contract.errors import LimitExceeded
from worker.contract.schemas import BatchItem, BatchRequest, BatchState, Caller, TurnRequest, TurnState

pytestmark = pytest.mark.anyio

WEBSITE, APP = Caller(api_key="website"), Caller(api_key="app")
BUDGETS = {"key": {"max_requests": Decimal(100)}, "key:website": {"max_requests": Decimal(4)}}


async def used(client: TurnClient, key: str) -> int:
    store = BudgetStore(client.connection, client.settings)
    return await store.used("default", Budget(f"key:{key}", limit("max_requests", Decimal(1))))


async def run_batch(client: TurnClient, worker: LocalWorker, item: BatchItem) -> str | None:
    """Post a batch of one item and run it; how the item failed."""
    batch = await client.submit_batch(BatchRequest(items=[item]))
    while (await client.batch(batch.batch_id)).state is BatchState.IN_PROGRESS:
        await worker.slices.run(batch.batch_id)
    (row,) = await client.results(batch.batch_id)
    return row.error.code if row.error else None


async def test_whatever_is_posted_with_a_key_counts_to_it(connect: Connect, provider: FakeProvider) -> None:
    client = await connect(budgets=BUDGETS)
    website = client.of(WEBSITE)
    async with LocalWorker(client, provider) as worker:
        turn = await website.submit(TurnRequest(message="a turn"))
        await worker.turns.run(turn.turn_id)
        assert await run_batch(website, worker, BatchItem(message="an item")) is None
        assert await run_batch(website, worker, BatchItem(message="a turn", conversation="c")) is None
        made = await overdue(website, conversation_id="d")
        await worker.reaper.tick()
        active = (await client.line("d")).active
        assert active is not None
        await worker.turns.run(active)
        assert await used(client, "website") == 4

        with pytest.raises(LimitExceeded, match="max_requests of the key website is 4: 4 used"):
            await website.submit(TurnRequest(message="one more"))
        assert await run_batch(website, worker, BatchItem(message="one more")) == "budget_exceeded"
        other = await client.of(APP).submit(TurnRequest(message="of another key"))
        await worker.turns.run(other.turn_id)
        keyless = await client.submit(TurnRequest(message="of none"))
        await worker.turns.run(keyless.turn_id)
        await website.schedules.delete(made.schedule_id)
    assert {(await client.turn(one.turn_id)).state for one in (turn, other, keyless)} == {TurnState.COMPLETED}
    assert (await used(client, "website"), await used(client, "app")) == (4, 1)
    assert len(provider.calls) == 6
