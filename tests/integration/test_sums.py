"""Money is counted in five places, by workers of which one is killed, and by an API; all say the same."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import httpx
import pytest

from aiforge.core.events import Token
from aiforge.core.types import ProviderCall, Usage
from aiforge.testing import FakeProvider, Gate, Reply, ToolCall, failure
from tests.support.processes import Service, Start
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import (
    BatchItem,
    BatchRequest,
    ConversationSettings,
    Turn,
    TurnRequest,
    TurnState,
)

pytestmark = pytest.mark.anyio
GROUPS: Final = ("day", "provider", "model", "purpose")
EACH: Final = 1
"""Turns of each kind."""
KINDS: Final = ("fine", "failed", "retried", "tools", "cancelled", "other model", "unpriced")
MODELS: Final = {"other model": "gpt-4o", "unpriced": "model-of-the-house"}
KINDS_OF_TOKENS: Final = {
    "input": "input_tokens", "output": "output_tokens",
    "cached": "cached_tokens", "reasoning": "reasoning_tokens",
}  # fmt: skip


async def run(client: TurnClient, provider: FakeProvider, kind: str, number: int) -> Turn:
    """One turn of a kind, from its submission to its end."""
    message = f"{kind}-{number}?"
    match kind:
        case "failed":
            provider.when(message, failure(400))
        case "retried":
            provider.when(message, failure(503), times=1)
        case "tools":
            provider.when(message, Reply(tool_calls=[ToolCall("calculator", {"expression": "1+1"})]), times=1)
        case "cancelled":
            provider.when(message, Reply(chunks=["One ", "two ", Gate("never")]))
    tools = ["calculator"] if kind == "tools" else None
    turn = await client.submit(TurnRequest(message=message, model=MODELS.get(kind), tools=tools))
    if kind == "cancelled":
        async for _, event in client.events(turn.turn_id):
            if isinstance(event, Token):
                await client.cancel(turn.turn_id)
    return await client.wait(turn.turn_id, 60)


async def say_two_words(client: TurnClient, turn: Turn) -> None:
    words = 0
    async for _, event in client.events(turn.turn_id):
        words += isinstance(event, Token)
        if words == 2:
            return


async def kill_one(client: TurnClient, provider: FakeProvider, start: Start) -> Turn:
    """A turn whose first worker dies between two words; its conversation names the model."""
    provider.when("killed?", Reply(chunks=["One ", "two ", Gate("never")]), times=1)
    await client.create_conversation(ConversationSettings(model="gpt-4o"), conversation_id="killed")
    worker = start(lease_seconds="1.5")
    turn = await client.submit(TurnRequest(message="killed?"), conversation_id="killed")
    await say_two_words(client, turn)
    worker.kill()
    return turn


async def roll_back(client: TurnClient, provider: FakeProvider) -> list[Turn]:
    """A turn that another one takes the place of, after two words."""
    provider.when("rolled back?", Reply(chunks=["One ", "two ", Gate("never")]))
    first = await client.submit(TurnRequest(message="rolled back?"), conversation_id="rolled")
    await say_two_words(client, first)
    request = TurnRequest(message="fine?", on_busy="rollback")
    second = await client.submit(request, conversation_id="rolled")
    return [await client.wait(turn.turn_id, 60) for turn in (first, second)]


async def run_batch(client: TurnClient, provider: FakeProvider) -> str:
    provider.when("item-2?", failure(400))
    items = [BatchItem(message=f"item-{number}?") for number in range(5)]
    batch = await client.submit_batch(BatchRequest(items=items))

    async def over() -> bool:
        return (await client.batch(batch.batch_id)).finished_at is not None

    await eventually(over, 60)
    return batch.batch_id


def total(calls: Iterable[ProviderCall]) -> Decimal:
    return sum((call.cost for call in calls if call.cost is not None), Decimal(0))


def unpriced(calls: Iterable[ProviderCall]) -> int:
    return sum(call.usage is not None and call.cost is None for call in calls)


def guessed(calls: Iterable[ProviderCall]) -> Decimal:
    return total(call for call in calls if call.usage is not None and call.usage.estimated)


def told(calls: Iterable[ProviderCall]) -> list[ProviderCall]:
    """Those that did not die with their worker."""
    return [call for call in calls if call.outcome != "lost"]


def answering(call: ProviderCall) -> str:
    """The model that totals are kept by: none where no model has answered."""
    spoke = call.outcome == "ok" or (call.usage is not None and call.usage != Usage())
    return call.model if spoke else ""


def exposed(text: str, name: str) -> dict[tuple[str, ...], Decimal]:
    """A metric's values by the values of its labels, in the order of the labels' names."""
    found = {}
    for labels, value in re.findall(rf"^{name}\{{(.*)\}} (\S+)$", text, re.MULTILINE):
        pairs = sorted(re.findall(r'(\w+)="([^"]*)"', labels))
        found[tuple(label for _, label in pairs)] = Decimal(value)
    return found


async def test_turns_ledger_usage_and_metrics_agree(
    client: TurnClient, worker_process: Start, api_process: Start, provider: FakeProvider
) -> None:
    killed = await kill_one(client, provider, worker_process)
    workers = [worker_process(concurrency="4", lease_seconds="1.5") for _ in range(2)]
    api = api_process()
    jobs = [run(client, provider, kind, number) for number, kind in itertools.product(range(EACH), KINDS)]
    turns, rolled, batch_id, killed = await asyncio.gather(
        asyncio.gather(*jobs),
        roll_back(client, provider),
        run_batch(client, provider),
        client.wait(killed.turn_id, 60),
    )
    turns = [*turns, *rolled, killed]

    rows = {turn.turn_id: await client.turns.calls(turn.turn_id) for turn in turns}
    states = Counter(turn.state for turn in turns)
    assert states == {
        TurnState.COMPLETED: 5 * EACH + 2, TurnState.FAILED: EACH, TurnState.CANCELLED: EACH + 1
    }  # fmt: skip
    for turn in turns:
        known = not unpriced(rows[turn.turn_id])
        assert turn.cost == (total(rows[turn.turn_id]) if known else None)
        assert turn.estimated_cost == (guessed(rows[turn.turn_id]) if known else None)
    assert [(call.outcome, call.attempt, call.model) for call in rows[killed.turn_id]] == [
        ("lost", 1, "gpt-4o"), ("ok", 2, "gpt-4o"),
    ]  # fmt: skip
    for turn in (killed, rolled[0]):
        assert turn.cost is not None
        assert turn.cost >= (turn.estimated_cost or 0) > 0
    of_batch = await client.turns.calls(batch_id)
    batch = await client.batch(batch_id)
    assert (batch.cost, batch.unpriced_calls) == (total(of_batch), unpriced(of_batch))
    costs = [row.cost for row in await client.results(batch_id)]
    assert sum(cost for cost in costs if cost is not None) == batch.cost

    ledger = [call for calls in (*rows.values(), of_batch) for call in calls]
    assert sorted(call.call_id for call in ledger) == sorted(call.call_id or "" for call in provider.calls)
    several = "a retry, a tool's result and a death each take another call"
    assert len(ledger) == (len(KINDS) + 2) * EACH + 4 + 5, several
    assert unpriced(ledger) == EACH
    await _usage_agrees(api, ledger)
    await _metrics_agree(api, workers, ledger)


async def _usage_agrees(api: Service, ledger: list[ProviderCall]) -> None:
    async with httpx.AsyncClient(base_url=api.url, trust_env=False) as http:
        for size in range(1, len(GROUPS) + 1):
            for group in itertools.combinations(GROUPS, size):
                report = (await http.get("/v1/usage", params={"group_by": list(group)})).json()
                _report_agrees(report, ledger)
        by_model = (await http.get("/v1/usage", params={"group_by": "model"})).json()["data"]
    for row in by_model:
        of_model = [call for call in ledger if answering(call) == row["model"]]
        assert (Decimal(row["cost"]), row["calls"]) == (total(of_model), len(of_model))
        assert Decimal(row["estimated_cost"]) == guessed(of_model)
        assert row["lost_calls"] == len(of_model) - len(told(of_model))


def _report_agrees(report: dict[str, Any], ledger: list[ProviderCall]) -> None:
    data = report["data"]
    assert Decimal(report["total_cost"]) == sum(Decimal(row["cost"]) for row in data) == total(ledger)
    assert sum(row["calls"] for row in data) == len(ledger)
    assert sum(row["unpriced_calls"] for row in data) == unpriced(ledger)
    failed = sum(call.outcome in ("error", "aborted") for call in ledger)
    assert (sum(row["failed_calls"] for row in data), sum(row["lost_calls"] for row in data)) == (failed, 1)
    for name in KINDS_OF_TOKENS.values():
        used = sum(getattr(call.usage, name) for call in ledger if call.usage is not None)
        assert sum(row[name] for row in data) == used


async def _metrics_agree(api: Service, workers: list[Service], ledger: list[ProviderCall]) -> None:
    models: dict[str, list[ProviderCall]] = defaultdict(list)
    for call in ledger:
        models[answering(call)].append(call)
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(f"{api.url}/metrics")).text
        counted: Counter[tuple[str, ...]] = Counter()
        for worker in workers:
            own = exposed((await http.get(f"{worker.url}/metrics")).text, "aiforge_provider_calls_total")
            assert own, "both workers have had work"
            counted.update({labels: int(count) for labels, count in own.items()})
    assert counted == Counter((call.outcome, call.purpose) for call in told(ledger))
    cost = exposed(text, "aiforge_ledger_cost_usd_total")
    assert cost == {(model, "openai"): total(told(calls)) for model, calls in models.items()}
    lost = exposed(text, "aiforge_ledger_lost_cost_usd")
    assert sum(cost.values()) + sum(lost.values()) == total(ledger)
    assert lost["gpt-4o", "openai"] == total(ledger) - total(told(ledger)) > 0
    calls = exposed(text, "aiforge_ledger_calls_total")
    assert calls == Counter((answering(call), call.outcome, "openai") for call in ledger)
    tokens = exposed(text, "aiforge_ledger_tokens_total")
    for (kind, model, _), count in tokens.items():
        used = [call.usage for call in told(models[model]) if call.usage is not None]
        assert count == sum(getattr(usage, KINDS_OF_TOKENS[kind]) for usage in used)
    missing = exposed(text, "aiforge_ledger_unpriced_calls_total")
    assert missing == {(model, "openai"): unpriced(calls) for model, calls in models.items()}
