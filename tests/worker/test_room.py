"""An item for which a budget has no room goes back and waits, as long as it has cost nothing."""

from __future__ import annotations

from decimal import Decimal

import pytest

from aiforge.testing import FakeProvider, Reply, ToolCall, failure
from tests.support.runners import LocalWorker
from tests.support.turns import Connect
from worker.contract.client import TurnClient
from worker.contract.schemas import Batch, BatchItem, BatchRequest

pytestmark = pytest.mark.anyio
ONE_A_DAY = {"tenant": {"requests_per_day": Decimal(1)}}


async def run(client: TurnClient, provider: FakeProvider, **request: object) -> Batch:
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="question")], **request))  # type: ignore[arg-type]
    async with LocalWorker(client, provider) as worker:
        await worker.slices.run(batch.batch_id)
    return await client.batch(batch.batch_id)


async def test_a_call_that_failed_for_free_is_no_reason_to_give_up(
    connect: Connect, provider: FakeProvider
) -> None:
    """Its second try finds no room before tomorrow."""
    client = await connect(budgets=ONE_A_DAY)
    provider.when("question", failure(503), times=1)
    batch = await run(client, provider)
    assert (batch.failed, batch.completed, len(provider.calls)) == (0, 0, 1)
    assert batch.waits_until is not None


async def test_what_was_paid_is_not_paid_again(connect: Connect, provider: FakeProvider) -> None:
    """An item has no journal: to wait would be to pay for its first round at each try."""
    client = await connect(budgets=ONE_A_DAY)
    asks = Reply(tool_calls=[ToolCall("calculator", {"expression": "1+1"})])
    provider.when("question", asks, times=1)
    batch = await run(client, provider, tools=["calculator"])
    assert (batch.failed, batch.waits_until) == (1, None)
    (row,) = await client.results(batch.batch_id)
    assert row.error is not None
    assert row.error.code == "budget_exceeded"
    assert row.cost == batch.cost > 0
