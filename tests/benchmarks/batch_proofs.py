"""What batches promise of money, counted: to the last digit wherever it can be read, and never too much."""

from __future__ import annotations

import asyncio
import json
import re
from decimal import Decimal
from functools import partial
from typing import Final

import httpx
import uvloop

from aiforge.core.types import ProviderCall
from tests.benchmarks.stage import Stage, stage
from tests.support.waiting import eventually, wait_until
from worker.contract.calls.budget_limits import UNITS
from worker.contract.client import TurnClient
from worker.contract.keys import Keys
from worker.contract.schemas import Batch, BatchItem, BatchRequest, Caller

WIDTH: Final = 100
CAPPED_WIDTH: Final = 32
A_CALL: Final = Decimal("0.00003")
"""About what a call costs, USD."""
CALLS_A_KILL: Final = 4
"""So many times the width are called from one kill to the next."""
TENANT: Final = "acme"
LEASE: Final = 2.0
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


async def _submit(
    client: TurnClient, count: int, *, tenant: str = "default", max_cost: Decimal | None = None
) -> str:
    items = [BatchItem(message=f"question {number:07d}") for number in range(count)]
    request = BatchRequest(items=items, max_tokens=TOKENS, max_cost=max_cost)
    return (await client.of(Caller(tenant)).submit_batch(request)).batch_id


async def _ended(client: TurnClient, batch_id: str, *, tenant: str = "default") -> Batch:
    async def over() -> bool:
        return (await client.of(Caller(tenant)).batch(batch_id)).finished_at is not None

    await eventually(over, PATIENCE_SECONDS)
    return await client.of(Caller(tenant)).batch(batch_id)


def capped(kills: int) -> Rows:
    """A cap, then a tenant's budget, each of which holds a third of a batch, while workers are killed."""
    most = A_CALL * CAPPED_WIDTH * CALLS_A_KILL * (kills + 1)
    budgets = {f"tenant:{TENANT}": {"max_usd": str(most)}}
    with stage(
        latency=0.2, tokens=TOKENS, concurrency=CAPPED_WIDTH, lease_seconds=LEASE, budgets=json.dumps(budgets)
    ) as on:
        return uvloop.run(_capped(on, most, kills))


async def _capped(on: Stage, most: Decimal, kills: int) -> Rows:
    rows = [["kills of the worker", f"{kills} each"], ["at most, USD", f"{most.normalize():f}"]]
    async with await TurnClient.connect(on.contract) as client:
        unit = (await _ended(client, await _submit(client, 1))).cost
        for name, tenant, cap in (("cap", "default", most), ("budget", TENANT, None)):
            before = on.calls()
            batch_id = await _submit(client, int(3 * most / unit), tenant=tenant, max_cost=cap)
            for number in range(kills):
                reached = before + int(most / unit) * (number + 1) // (kills + 1)
                await asyncio.to_thread(wait_until, partial(_reached, on, reached), PATIENCE_SECONDS, 0.02)
                await asyncio.to_thread(on.kill, "worker")
            batch = await _ended(client, batch_id, tenant=tenant)
            scope = "tenant" if cap is None else f"batch:{batch_id}"
            await eventually(partial(_nothing_held, on, tenant, scope), PATIENCE_SECONDS)
            spent, used = unit * (on.calls() - before), _used(on, tenant, scope)
            reported = batch.cost - batch.estimated_cost
            assert spent <= most, (spent, most)
            assert reported <= most, (reported, most)
            assert most - 3 * CAPPED_WIDTH * unit <= used <= most, (used, most)
            rows += [
                [f"{name}: the calls that the provider saw × price, USD", f"{spent.normalize():f}"],
                [f"{name}: used of it, USD", f"{used.normalize():f}"],
                [f"{name}: the batch's cost, USD", f"{batch.cost.normalize():f}"],
                [
                    f"{name}: of it estimated, for calls lost with their worker",
                    f"{batch.estimated_cost.normalize():f}",
                ],
                [f"{name}: answered, refused", f"{batch.completed:,}, {batch.failed:,}"],
            ]
    return rows


def _reached(on: Stage, calls: int) -> bool:
    return on.calls() >= calls


def _nothing_held(on: Stage, tenant: str, scope: str) -> bool:
    """Whether no call holds anything of a budget any more."""
    keys = Keys(on.contract.namespace)
    held = on.store.ask("HGET", keys.budget(tenant, scope), "usd:0:held")
    return int(held) == 0 and on.store.ask("EXISTS", keys.reserved(tenant)) == 0


def _used(on: Stage, tenant: str, scope: str) -> Decimal:
    used = on.store.ask("HGET", Keys(on.contract.namespace).budget(tenant, scope), "usd:0:used")
    return Decimal(int(used)) / UNITS
