"""Budgets hold for real workers: nothing is overspent, nothing leaks, and the caller reads which one."""

from __future__ import annotations

import json
from decimal import Decimal

import httpx
import pytest

from aiforge.core.types import Usage
from aiforge.testing import FakeProvider, Gate, Reply
from tests.support.processes import Start
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import BatchItem, BatchRequest, BatchState


def test_a_conversation_that_has_spent_its_budget_is_refused(
    provider: FakeProvider, worker_process: Start, api_process: Start
) -> None:
    budgets = json.dumps({"conversation": {"max_requests": 2}})
    worker_process(budgets=budgets)
    url = api_process(budgets=budgets).url
    with httpx.Client(base_url=url, trust_env=False, timeout=30) as http:
        for _ in range(2):
            done = http.post("/v1/conversations/c/turns?wait=30", json={"message": "Hi"}).json()
            assert done["state"] == "completed", done
        refused = http.post("/v1/conversations/c/turns", json={"message": "Hi"})
        assert refused.status_code == 429
        assert refused.headers["x-should-retry"] == "false"
        error = refused.json()["error"]
        assert (error["code"], error["type"]) == ("budget_exceeded", "rate_limit_error")
        assert "max_requests of the conversation c is 2: 2 used" in error["message"]
        other = http.post("/v1/conversations/d/turns?wait=30", json={"message": "Hi"}).json()
        assert other["state"] == "completed"
    assert len(provider.calls) == 3


@pytest.mark.parametrize("measure", ["requests", "tokens", "usd"])
def test_a_window_says_when_to_come_back(api_process: Start, measure: str) -> None:
    """And a budget of money that no program should try again by itself."""
    budgets = json.dumps({"tenant": {f"{measure}_per_hour": 0}})
    url = api_process(budgets=budgets).url
    refused = httpx.post(f"{url}/v1/turns", json={"message": "Hi"}, trust_env=False)
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 3600
    assert refused.headers.get("x-should-retry") == ("false" if measure == "usd" else None)
    assert f"{measure}_per_hour of the tenant is 0: 0 used" in refused.json()["error"]["message"]


@pytest.mark.anyio
async def test_a_batch_stops_at_its_cost(
    client: TurnClient, provider: FakeProvider, worker_process: Start
) -> None:
    """There is room for three calls under way; the others wait for what these leave, which is too little."""
    reply = Reply(chunks=["ok", Gate("release")], usage=Usage(4_000, 1))
    provider.when("xxx", reply)
    items = [BatchItem(message="x" * 16_000, max_tokens=1) for _ in range(8)]
    batch = await client.submit_batch(BatchRequest(items=items, max_cost=Decimal("0.00182")))
    worker_process(concurrency="8")
    await eventually(lambda: calls_of(provider, 3))
    assert (await client.batch(batch.batch_id)).failed == 0
    provider.open("release")
    done = await eventually(lambda: ended(client, batch.batch_id))
    assert done == (BatchState.COMPLETED, 3, 5)
    assert len(provider.calls) == 3
    rows = await client.results(batch.batch_id)
    assert {row.error.code for row in rows if row.error} == {"budget_exceeded"}
    assert (await client.batch(batch.batch_id)).cost <= Decimal("0.00182")


@pytest.mark.anyio
async def test_a_batch_is_answered_whole_when_its_cost_allows_it(
    client: TurnClient, provider: FakeProvider, worker_process: Start
) -> None:
    """What calls under way could take is many times the limit, what they take is a part of it."""
    items = [BatchItem(message=f"question {number}", max_tokens=1_000) for number in range(40)]
    batch = await client.submit_batch(BatchRequest(items=items, max_cost=Decimal("0.0035")))
    worker_process(concurrency="16")
    assert await eventually(lambda: ended(client, batch.batch_id)) == (BatchState.COMPLETED, 40, 0)
    assert len(provider.calls) == 40


async def calls_of(provider: FakeProvider, wanted: int) -> bool:
    return len(provider.calls) >= wanted


async def ended(client: TurnClient, batch_id: str) -> tuple[BatchState, int, int] | None:
    batch = await client.batch(batch_id)
    over = batch.state is BatchState.COMPLETED
    return (batch.state, batch.completed, batch.failed) if over else None
