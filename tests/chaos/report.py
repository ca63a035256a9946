"""The table that a run ends with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from tests.chaos.evidence import Evidence, Hit
from tests.chaos.guarantees.recovery import pauses, recoveries
from tests.chaos.oracle import Verdict

SHOWN: Final = 3
"""How many examples of what is wrong are shown with a guarantee."""
SHOWN_LETTERS: Final = 400


def table(evidence: Evidence, verdicts: Sequence[Verdict]) -> str:
    """What was done, what was looked at and what was wrong, and how long recovery took."""
    return "\n".join([*_run(evidence), "", *_verdicts(verdicts), "", *_recovery(evidence)])


def _run(evidence: Evidence) -> Iterator[str]:
    plan, lasting, late = evidence.plan, evidence.lasting(), evidence.late
    turns = sum(map(len, evidence.accepted.values()))
    rate = turns / evidence.seconds if evidence.seconds else 0.0
    faults = ", ".join(f"{count} × {fault}" for fault, count in Counter(plan.faults()).items())
    struck = {hit.turn_id for hit in lasting}
    rows = Counter(row.outcome for facts in evidence.facts.values() for row in facts.ledger)
    yield f"seed {plan.seed}: {turns} turns in {len(evidence.accepted)} conversations, {rate:.1f} a second"
    yield f"faults: {faults}; lease {plan.lease:g} s; an answer takes {plan.answer_seconds:.1f} s"
    yield f"hits: {len(evidence.hits)}, of which {len(lasting)} cost a turn its attempt ({len(struck)} turns)"
    for (fault, phase), count in sorted(Counter((hit.fault, hit.phase) for hit in evidence.hits).items()):
        yield f"{count:7} {fault} {phase}"
    along = sum(reading.turn_id in struck for reading in evidence.readings)
    yield f"readers: {len(evidence.readings)}, {along} of them of turns that were hit"
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in rows.items())
    yield f"provider calls: {len(evidence.asked)}; rows of the ledger: {outcomes}"
    yield f"refused as too late: {late.get('refused', 0)} commits, {late.get('lost', 0)} streams"


def _verdicts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield f"{'seen':>7} {'wrong':>6}  guarantee"
    for verdict in verdicts:
        found = verdict.findings
        yield f"{found.seen:7} {len(found.wrong):6}  {verdict.guarantee}"
        yield from (f"{'':16}! {text[:SHOWN_LETTERS]}" for text in found.wrong[:SHOWN])


def _recovery(evidence: Evidence) -> Iterator[str]:
    ends, limit = recoveries(evidence), evidence.plan.recovery_limit
    times = Counter(hit.turn_id for hit in evidence.lasting())
    yield f"{f'seconds (limit {limit:g})':44} {'turns':>6} {'p50':>6} {'p95':>6} {'max':>6}"
    for fault in sorted({hit.fault for hit, _ in ends}):
        of_fault = [(hit, seconds) for hit, seconds in ends if hit.fault == fault]
        again = [seconds for hit, _ in of_fault for seconds in _asked_again(evidence, hit)]
        yield _line(f"{fault}: to the next attempt's provider call", again)
        yield _line(f"{fault}: to the answer", [seconds for _, seconds in of_fault])
        for hits in sorted({times[hit.turn_id] for hit, _ in of_fault} - {1}):
            seconds = [seconds for hit, seconds in of_fault if times[hit.turn_id] == hits]
            yield _line(f"{fault}: to the answer of turns hit {hits} times", seconds)
    if evidence.outages:
        yield _line("redis: to the next provider call", pauses(evidence))
    yield _line("never hit: from coming up to the answer", list(_undisturbed(evidence)))


def _undisturbed(evidence: Evidence) -> Iterator[float]:
    """Seconds that turns took that were never hit, from when they were the next of their conversation."""
    hit = {hit.turn_id for hit in evidence.hits}
    for turns in evidence.accepted.values():
        before = 0.0
        for turn in (evidence.facts[turn.turn_id].turn for turn in turns if turn.turn_id in evidence.facts):
            ended = turn.finished_at or float("inf")
            if turn.turn_id not in hit:
                yield ended - max(turn.created_at, before)
            before = ended


def _asked_again(evidence: Evidence, hit: Hit) -> list[float]:
    """Seconds from the hit to the first provider call of the attempt after it."""
    later = [
        asked.arrived - hit.at
        for asked in evidence.asked
        if asked.call_id.startswith(f"{hit.turn_id}.") and asked.arrived > hit.at
    ]
    return later[:1]


def _line(name: str, seconds: list[float]) -> str:
    shares = " ".join(f"{_share(seconds, share):6.1f}" for share in (0.5, 0.95, 1.0))
    return f"{name:44} {len(seconds):6} {shares}"


def _share(values: list[float], share: float) -> float:
    """The value that `share` of all values do not exceed."""
    ordered = sorted(values) or [0.0]
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
