"""What batches promise, counted: its money, to the last digit, wherever it can be read."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

import httpx
import uvloop

from aiforge.core.types import ProviderCall
from tests.benchmarks.stage import Stage, stage
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import Batch, BatchItem, BatchRequest

WIDTH: Final = 100
PATIENCE_SECONDS: Final = 3_600.0
TOKENS: Final = 50
Rows = list[list[str]]


def money(count: int) -> Rows:
    """The cost of a batch in the places where it can be read; they have to be equal."""
    with stage(latency=0.01, concurrency=WIDTH) as on:
        batch, calls = uvloop.run(_run(on, count))
        said = {
            "the batch": batch.cost,
            "sum of its ledger": sum((call.cost for call in calls if call.cost is not None), Decimal(0)),
            **_reported(on),
        }
    assert len(set(said.values())) == 1, said
    assert batch.completed == count
    return [[name, f"{cost.normalize():f} USD"] for name, cost in said.items()]


def _reported(on: Stage) -> dict[str, Decimal]:
    with httpx.Client(base_url=on.api.url, trust_env=False) as http:
        usage = http.get("/v1/usage").json()["total_cost"]
        text = http.get("/metrics").text
    values = re.findall(r"^aiforge_ledger_cost_usd_total\{.*\} (\S+)$", text, re.MULTILINE)
    return {"GET /v1/usage": Decimal(usage), "GET /metrics": sum(map(Decimal, values), Decimal(0))}


async def _run(on: Stage, count: int) -> tuple[Batch, list[ProviderCall]]:
    async with await TurnClient.connect(on.contract) as client:
        batch_id = await _submit(client, count)
        return await _ended(client, batch_id), await client.turns.calls(batch_id)


async def _submit(client: TurnClient, count: int) -> str:
    items = [BatchItem(message=f"question {number:07d}") for number in range(count)]
    request = BatchRequest(items=items, max_tokens=TOKENS)
    return (await client.submit_batch(request)).batch_id


async def _ended(client: TurnClient, batch_id: str) -> Batch:
    async def over() -> bool:
        return (await client.batch(batch_id)).finished_at is not None

    await eventually(over, PATIENCE_SECONDS)
    return await client.batch(batch_id)
