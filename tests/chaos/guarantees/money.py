"""Every provider call is in the ledger once, and the totals are the ledger's sums."""

from __future__ import annotations

from collections import Counter, defaultdict
from decimal import Decimal
from typing import Final

from aiforge.core.types import ProviderCall, Usage
from tests.chaos.evidence import Evidence
from tests.chaos.guarantees.findings import Findings, call_of, completed, turn_of
from worker.contract.calls.usage import UsageRow

LOST: Final = "lost:"
"""Stands before the sums of calls that died with their worker."""
MONEY: Final = frozenset({"usd", "estimated", f"{LOST}usd", f"{LOST}estimated"})


def every_call_known(evidence: Evidence, found: Findings) -> None:
    """Every call that the provider saw has exactly one row in the ledger, under its turn."""
    seen = Counter(asked.call_id for asked in evidence.asked)
    rows = Counter((turn, row.call_id) for turn, facts in evidence.facts.items() for row in facts.ledger)
    for call_id, times in seen.items():
        under = rows[turn_of(call_id), call_id]
        found.expect(times == under == 1, f"{call_id!r}: seen {times} times, {under} rows under its turn")


def every_row_settled(evidence: Evidence, found: Findings) -> None:
    """No row stays open; one that the provider never saw is `lost`, or told of by a worker that lives on."""
    seen = {asked.call_id for asked in evidence.asked}
    told = {hit.turn_id for hit in evidence.hits if hit.fault not in ("kills", "points")}
    for turn_id, facts in evidence.facts.items():
        unseen = {"lost", "aborted"} if turn_id in told else {"lost"}
        for row in facts.ledger:
            good = row.outcome in unseen if row.call_id not in seen else row.outcome != "intended"
            cut_off = bool(evidence.disturbed) and row.outcome == "error"
            found.expect(good or cut_off, f"{row.call_id} is {row.outcome}, seen: {row.call_id in seen}")


def answer_is_paid(evidence: Evidence, found: Findings) -> None:
    """The call whose answer is stored is settled as `ok`; the turn's cost is that of all its attempts."""
    calls = {asked.number: asked.call_id for asked in evidence.asked}
    for turn_id, facts in completed(evidence):
        rows = [row for row in facts.ledger if row.call_id == calls.get(call_of(facts))]
        good = [row.outcome for row in rows] == ["ok"] and rows[0].usage is not None and rows[0].cost
        found.expect(bool(good), f"{turn_id} is paid by {rows}")
        spent = [row.cost for row in facts.ledger]
        unknown = any(row.outcome == "lost" and row.cost is None for row in facts.ledger)
        cost = None if unknown else sum((cost for cost in spent if cost is not None), Decimal(0))
        found.expect(not good or facts.turn.cost == cost, f"{turn_id} costs {facts.turn.cost}, not {cost}")


def sums_agree(evidence: Evidence, found: Findings) -> None:
    """The totals are the sums of the rows: no call is counted twice or not at all, to the last digit."""
    sums: dict[tuple[str, str], Counter[str]] = {}
    usd: defaultdict[tuple[str, str, str], Decimal] = defaultdict(Decimal)
    guessed: defaultdict[tuple[str, str, str], Decimal] = defaultdict(Decimal)
    for row in (row for facts in evidence.facts.values() for row in facts.ledger):
        sums.setdefault((row.provider, _field(row)), Counter()).update(_amounts(row))
        kind = LOST if row.outcome == "lost" else ""
        usd[kind, row.provider, row.model] += row.cost or Decimal(0)
        if row.usage is not None and row.usage.estimated:
            guessed[kind, row.provider, row.model] += row.cost or Decimal(0)
    for model in sums.keys() | evidence.totals.keys():
        stored, counted = evidence.totals.get(model, {}), sums.get(model, Counter())
        for name in stored.keys() - MONEY | counted.keys():
            good = stored.get(name, 0) == counted[name]
            found.expect(good, f"{model} {name}: {stored.get(name)} in total, {counted[name]} in rows")
        for name in MONEY:
            summed = guessed if name.endswith("estimated") else usd
            amount = summed[name.removesuffix("usd").removesuffix("estimated"), *model]
            found.expect(
                stored.get(name, Decimal(0)) == amount, f"{model} {name}: {stored}, {amount} in rows"
            )


def usage_agrees(evidence: Evidence, found: Findings) -> None:
    """The tenant's usage by day adds up to the same calls, tokens and cost as the totals."""
    days = {(str(row.provider), str(row.model)): row for row in evidence.usage}
    for model in days.keys() | evidence.totals.keys():
        sums, row = evidence.totals.get(model, {}), days.get(model, UsageRow())
        calls = sum(amount for name, amount in sums.items() if name.startswith("calls:"))
        names = ("input", "output", "cached", "reasoning", "unpriced", "usd", "estimated")
        stored = [sums.get(name, 0) + sums.get(LOST + name, 0) for name in names]
        by_day = [
            row.input_tokens,
            row.output_tokens,
            row.cached_tokens,
            row.reasoning_tokens,
            row.unpriced_calls,
            row.cost,
            row.estimated_cost,
        ]
        good = [calls, sums.get("calls:lost", 0), *stored] == [row.calls, row.lost_calls, *by_day]
        found.expect(good, f"{model}: {row} by day, {sums} in total")


def _field(row: ProviderCall) -> str:
    """The model that the sums name: none where it has said nothing, as it may be a caller's invention."""
    spoke = row.outcome in ("ok", "lost") or (row.usage is not None and row.usage != Usage())
    return row.model if spoke else ""


def _amounts(row: ProviderCall) -> dict[str, int]:
    usage, kind = row.usage or Usage(), LOST if row.outcome == "lost" else ""
    return {
        f"calls:{row.outcome}": 1,
        f"{kind}input": usage.input_tokens,
        f"{kind}output": usage.output_tokens,
        f"{kind}cached": usage.cached_tokens,
        f"{kind}reasoning": usage.reasoning_tokens,
        f"{kind}unpriced": int(row.cost is None and (row.usage is not None or row.outcome in ("ok", "lost"))),
    }
