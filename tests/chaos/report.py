"""The table that a run ends with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from tests.chaos.evidence import Asked, Evidence
from tests.chaos.guarantees.findings import turn_of
from tests.chaos.guarantees.recovery import hand_backs, pauses, phases, recoveries, share, undisturbed
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
    faults = ", ".join(f"{count} {fault}" for fault, count in plan.faults.items() if count) or "none"
    rows = Counter(row.outcome for facts in evidence.facts.values() for row in facts.ledger)
    states = Counter(facts.turn.state for facts in evidence.facts.values())
    yield f"seed {plan.seed}: {turns} turns in {len(evidence.accepted)} conversations, {rate:.1f} a second"
    yield f"faults: {faults}; lease {plan.lease:g} s; an answer takes {plan.answer_seconds:.1f} s"
    clocks = "; workers' clocks ten minutes fast and slow" if plan.skew else ""
    yield f"Redis: appendfsync {plan.durability}{clocks}"
    yield f"ended: {', '.join(f'{count} {state}' for state, count in states.items())}"
    yield f"submissions repeated under their key: {evidence.repeated}"
    yield f"the driver was late by {evidence.lag:.2f} s at most"
    yield from _hits(evidence)
    struck = {hit.turn_id for hit in lasting}
    along = sum(reading.turn_id in struck for reading in evidence.readings)
    yield f"readers: {len(evidence.readings)}, {along} of them of turns that were hit"
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in rows.items())
    yield f"provider calls: {len(evidence.asked)}; rows of the ledger: {outcomes}"
    if evidence.zombies:
        held = sum(zombie.held for zombie in evidence.zombies)
        refused = sum(zombie.refused for zombie in evidence.zombies)
        commits = sum(zombie.commit_refused for zombie in evidence.zombies)
        yield (
            f"stopped and woken: {len(evidence.zombies)}, their late commits refused: {commits};"
            f" turns held by them: {held}, refused: {refused}"
        )
    yield f"refused as too late: {late.get('refused', 0)} commits, {late.get('lost', 0)} streams"


def _hits(evidence: Evidence) -> Iterator[str]:
    lasting = evidence.lasting()
    struck = {hit.turn_id for hit in lasting}
    yield f"hits: {len(evidence.hits)}, of which {len(lasting)} cost a turn its attempt ({len(struck)} turns)"
    for (fault, phase), count in sorted(Counter((hit.fault, hit.phase) for hit in evidence.hits).items()):
        yield f"{count:7} {fault} {phase}"
    yield "kills by the phase of a turn that was hit: " + ", ".join(
        f"{count} {phase}" for phase, count in phases(evidence).items()
    )
    if evidence.points:
        points = Counter(f"{moment} {process}'s {script}" for process, script, moment in evidence.points)
        yield "killed: " + ", ".join(f"{count} {where}" for where, count in points.items())


def _verdicts(verdicts: Sequence[Verdict]) -> Iterator[str]:
    yield f"{'seen':>7} {'wrong':>6}  guarantee"
    for verdict in verdicts:
        found = verdict.findings
        yield f"{found.seen:7} {len(found.wrong):6}  {verdict.guarantee}"
        yield from (f"{'':16}! {text[:SHOWN_LETTERS]}" for text in found.wrong[:SHOWN])


def _recovery(evidence: Evidence) -> Iterator[str]:
    ends, plan = recoveries(evidence), evidence.plan
    again = _asked_again(evidence)
    limits = f"seconds (limits {plan.usual:g} and {plan.most:g})"
    yield f"{limits:44} {'turns':>6} {'p50':>6} {'p95':>6} {'max':>6}"
    for fault in sorted({hit.fault for hit, _ in ends}):
        of_fault = [(hit, seconds) for hit, seconds in ends if hit.fault == fault]
        calls = [seconds for hit, _ in of_fault for seconds in again.get((hit.turn_id, hit.at), [])]
        yield _line(f"{fault}: to the next attempt's provider call", calls)
        yield _line(f"{fault}: to the answer", [seconds for _, seconds in of_fault])
    if ends:
        yield _line("all: to the answer", [seconds for _, seconds in ends])
    if handed := hand_backs(evidence):
        yield _line("rolls: SIGTERM to the next claim", [seconds for _, seconds in handed])
    for fault in sorted({fault for fault, _ in pauses(evidence)}):
        yield _line(f"{fault}: to the next claim", [took for of, took in pauses(evidence) if of == fault])
    yield _line("never hit: from coming up to the answer", [seconds for _, seconds in undisturbed(evidence)])


def _asked_again(evidence: Evidence) -> dict[tuple[str, float], list[float]]:
    """By turn and time of a hit: seconds to the first provider call of the attempt after it."""
    calls: dict[str, list[Asked]] = {}
    for asked in evidence.asked:
        calls.setdefault(turn_of(asked.call_id), []).append(asked)
    return {
        (hit.turn_id, hit.at): [
            asked.arrived - hit.at for asked in calls.get(hit.turn_id, []) if asked.arrived > hit.at
        ][:1]
        for hit in evidence.hits
    }


def _line(name: str, seconds: list[float]) -> str:
    shares = " ".join(f"{share(seconds, part):6.1f}" for part in (0.5, 0.95, 1.0))
    return f"{name:44} {len(seconds):6} {shares}"
