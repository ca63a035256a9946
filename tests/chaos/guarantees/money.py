"""Every provider call is in the ledger once, and the totals are the ledger's sums."""

from __future__ import annotations

from collections import Counter, defaultdict
from decimal import Decimal

from aiforge.core.types import ProviderCall, Usage
from tests.chaos.evidence import Evidence
from tests.chaos.guarantees.findings import Findings, call_of, completed, turn_of
from worker.contract.calls.usage import UsageRow


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
    """The call whose answer is stored is settled as `ok`; the turn's cost is that of its last attempt."""
    calls = {asked.number: asked.call_id for asked in evidence.asked}
    for turn_id, facts in completed(evidence):
        rows = [row for row in facts.ledger if row.call_id == calls.get(call_of(facts))]
        good = [row.outcome for row in rows] == ["ok"] and rows[0].usage is not None and rows[0].cost
        found.expect(bool(good), f"{turn_id} is paid by {rows}")
        attempt = rows[0].call_id.rpartition(".")[0] if rows else ""
        spent = [row.cost for row in facts.ledger if row.call_id.rpartition(".")[0] == attempt]
        cost = sum((cost for cost in spent if cost is not None), Decimal(0))
        found.expect(not good or facts.turn.cost == cost, f"{turn_id} costs {facts.turn.cost}, not {cost}")


def sums_agree(evidence: Evidence, found: Findings) -> None:
    """The totals are the sums of the rows: no call is counted twice or not at all, to the last digit."""
    sums: dict[tuple[str, str], Counter[str]] = {}
    usd: defaultdict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for row in (row for facts in evidence.facts.values() for row in facts.ledger):
        if row.outcome == "lost":
            # An estimate stands in the row; the totals count the call and hold what was reported.
            sums.setdefault((row.provider, ""), Counter()).update({"calls:lost": 1})
            continue
        sums.setdefault((row.provider, row.model), Counter()).update(_amounts(row))
        usd[row.provider, row.model] += row.cost or Decimal(0)
    for model in sums.keys() | evidence.totals.keys():
        stored, counted = evidence.totals.get(model, {}), sums.get(model, Counter())
        for name in stored.keys() - {"usd"} | counted.keys():
            good = stored.get(name, 0) == counted[name]
            found.expect(good, f"{model} {name}: {stored.get(name)} in total, {counted[name]} in rows")
        good = stored.get("usd", Decimal(0)) == usd[model]
        found.expect(good, f"{model}: {stored.get('usd')} USD in total, {usd[model]} in rows")


def usage_agrees(evidence: Evidence, found: Findings) -> None:
    """The tenant's usage by day adds up to the same calls, tokens and cost as the totals."""
    days = {(str(row.provider), str(row.model)): row for row in evidence.usage}
    for model in days.keys() | evidence.totals.keys():
        sums, row = evidence.totals.get(model, {}), days.get(model, UsageRow())
        calls = sum(amount for name, amount in sums.items() if name.startswith("calls:"))
        stored = [sums.get(name, 0) for name in ("input", "output", "cached", "reasoning", "unpriced", "usd")]
        by_day = [
            row.input_tokens,
            row.output_tokens,
            row.cached_tokens,
            row.reasoning_tokens,
            row.unpriced_calls,
            row.cost,
        ]
        good = [calls, sums.get("calls:lost", 0), *stored] == [row.calls, row.lost_calls, *by_day]
        found.expect(good, f"{model}: {row} by day, {sums} in total")


def _amounts(row: ProviderCall) -> dict[str, int]:
    usage = row.usage or Usage()
    return {
        f"calls:{row.outcome}": 1,
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cached": usage.cached_tokens,
        "reasoning": usage.reasoning_tokens,
        "unpriced": int(row.cost is None and row.outcome == "ok"),
    }
