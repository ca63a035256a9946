"""However a call comes about and ends, turns, batches, ledger, usage, totals and budgets agree on it."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Final

import msgspec
import pytest

from aiforge.core.types import Outcome, ProviderCall, Usage
from aiforge.testing import Cut, FakeProvider, Gate, Reply, ToolCall, failure
from tests.support.runners import LocalWorker
from tests.support.turns import Connect, intended, submit
from tests.support.waiting import eventually
from worker import metrics
from worker.contract.calls.budget_limits import limit
from worker.contract.calls.budgets import Budget, BudgetStore
from worker.contract.client import TurnClient
from worker.contract.records import unpriced
from worker.contract.schemas import BatchItem, BatchRequest, ConversationSettings, TurnRequest, TurnState

pytestmark = pytest.mark.anyio

MANY: Final = Decimal(9_000_000)
MEASURES: Final = ("requests", "tokens", "usd")
LIMITS: Final = {f"max_{measure}": MANY for measure in MEASURES}
FINE: Final = {"input": "0.000001", "output": "0.333333", "cached": "0.000007"}
"""USD for a million tokens: a token costs as little as the ledger can count."""
SETTINGS: Final[dict[str, Any]] = {
    "MODELS": {
        "gpt-4o-mini": FINE,
        "second": {"input": "1.25", "output": "10", "cached": "0.625"},
        "free": {"input": 0, "output": 0},
    },
    "FALLBACKS": {"*": ["second"]},
    "MAX_RETRIES": 1,
}
USAGE: Final = Usage(262_961, 1_747, cached_tokens=257_959, reasoning_tokens=1_001)


def total(calls: Iterable[ProviderCall]) -> Decimal:
    return sum((call.cost for call in calls if call.cost is not None), Decimal(0))


def tokens(calls: Iterable[ProviderCall]) -> int:
    used = [call.usage for call in calls if call.usage is not None]
    return sum(usage.input_tokens + usage.output_tokens for usage in used)


async def turn(client: TurnClient, worker: LocalWorker, message: str, **request: Any) -> list[ProviderCall]:
    """Run a turn; its calls, whose cost is the turn's."""
    made = await client.submit(TurnRequest(message=message, **request), conversation_id="c")
    await worker.turns.run(made.turn_id)
    done = await client.turn(made.turn_id)
    assert done.finished
    calls = await client.turns.calls(made.turn_id)
    assert (done.cost, done.usage and done.usage.cached_tokens) == (
        total(calls),
        sum(call.usage.cached_tokens for call in calls if call.usage),
    )
    return calls


async def stopped(client: TurnClient, worker: LocalWorker, provider: FakeProvider) -> list[ProviderCall]:
    """A stream that is cancelled behind two words."""
    place = await submit(client, "stop me", conversation_id="d")
    running = worker.start(place.turn_id)
    await provider.wait_until_async(lambda: any(call.question == "stop me" for call in provider.calls))
    worker.leases.stop(place.turn_id, "cancelled")
    await running
    assert (await client.turn(place.turn_id)).state is TurnState.CANCELLED
    return await client.turns.calls(place.turn_id)


async def batch(client: TurnClient, worker: LocalWorker) -> list[ProviderCall]:
    """Twice the same item, one that fails, one with a tool, and two turns."""
    asked = ("same", "same", "wrong", "other")
    items = [BatchItem(message=message, temperature=0) for message in asked]
    items.append(BatchItem(message="with a tool", tools=["calculator"]))
    items += [BatchItem(message=message, conversation="e") for message in ("first", "then")]
    made = await client.submit_batch(BatchRequest(items=items, cache_ttl=60))
    while (await client.batch(made.batch_id)).finished_at is None:
        await worker.slices.run(made.batch_id)
    done, rows = await client.batch(made.batch_id), await client.results(made.batch_id)
    assert (done.completed, done.failed, done.saved_calls) == (6, 1, 1)
    assert sum((row.cost or 0 for row in rows), Decimal(0)) == done.cost > 0
    calls = await client.turns.calls(made.batch_id)
    page = await client.ledger.page(conversation_id="e")
    assert total(calls) + sum((row.cost or 0 for row in page.found), Decimal(0)) == done.cost
    again = await client.submit_batch(BatchRequest(items=items[:1], cache_ttl=60))
    await worker.slices.run(again.batch_id)
    assert (await client.batch(again.batch_id)).cost == 0
    assert await client.turns.calls(again.batch_id) == []
    for found in page.found:
        assert found.turn_id is not None
        calls += await client.turns.calls(found.turn_id)
    return calls


async def test_all_sums_agree_to_the_last_digit(connect: Connect, provider: FakeProvider) -> None:
    client = await connect(budgets={"tenant": LIMITS, "conversation": LIMITS, "batch": LIMITS})
    settings = ConversationSettings(memory="summary", memory_k=1)
    await client.create_conversation(settings, conversation_id="c")
    tool = Reply(tool_calls=[ToolCall("calculator", {"expression": "1+1"})], usage=USAGE)
    provider.when("fell", failure(400), times=1)
    provider.when("cut", Reply(chunks=["One ", Cut("reset")]), times=2)
    provider.when("again", failure(503), times=1)
    provider.when("with a tool", tool, times=1)
    provider.when("tools", tool, times=2)
    provider.when("cached", Reply(text="yes", usage=USAGE))
    provider.when("stop me", Reply(chunks=["One ", "two ", Gate("never")]))
    provider.when("wrong", failure(400))
    ledger: list[ProviderCall] = []
    async with LocalWorker(client, provider, **SETTINGS) as worker:
        for message in ("plain", "fell", "cut", "again", "cached"):
            ledger += await turn(client, worker, message)
        ledger += await turn(client, worker, "tools", tools=["calculator"])
        ledger += await turn(client, worker, "for nothing", model="free")
        ledger += await stopped(client, worker, provider)
        ledger += await batch(client, worker)
        await _agree(client, ledger)
    assert {call.purpose for call in ledger} == {"answer", "tool_round", "summary"}
    assert {call.model for call in ledger} == {"gpt-4o-mini", "second", "free"}
    assert {call.outcome for call in ledger} == {"ok", "error", "aborted"}
    assert sorted(call.call_id for call in ledger) == sorted(call.call_id or "" for call in provider.calls)


async def _agree(client: TurnClient, ledger: list[ProviderCall]) -> None:
    usage = await client.usage(group_by=["model", "purpose"])
    assert sum((row.cost for row in usage), Decimal(0)) == total(ledger)
    for row in usage:
        assert row.purpose in ("answer", "tool_round", "summary")
    assert sum(row.input_tokens + row.output_tokens for row in usage) == tokens(ledger)
    assert sum(row.calls for row in usage) == len(ledger)
    totals = (await client.stats()).totals
    assert sum((sums.get("usd", Decimal(0)) for sums in totals.values()), Decimal(0)) == total(ledger)

    store = BudgetStore(client.connection, client.settings)
    wanted = [len(ledger), tokens(ledger), int(total(ledger).scaleb(12))]

    async def budgets_agree() -> bool:
        found = [
            await store.used("default", Budget("tenant", limit(f"max_{measure}", MANY)))
            for measure in MEASURES
        ]
        return found == wanted

    await eventually(budgets_agree)
    assert await client.connection.command("HLEN", client.turns.keys.reserved("default")) == 0


@pytest.mark.parametrize(
    ("outcome", "usage", "counts"),
    [("ok", None, 1), ("aborted", Usage(3, 4, estimated=True), 1), ("error", None, 0)],
)
def test_a_worker_counts_as_unpriced_what_the_ledger_does(
    outcome: Outcome, usage: Usage | None, counts: int
) -> None:
    call = msgspec.structs.replace(intended("call"), outcome=outcome, usage=usage)
    before = metrics.REGISTRY.get_sample_value("aiforge_unpriced_calls_total") or 0
    metrics.count_call(call)
    assert metrics.REGISTRY.get_sample_value("aiforge_unpriced_calls_total") == before + counts
    assert unpriced(call) is bool(counts)
