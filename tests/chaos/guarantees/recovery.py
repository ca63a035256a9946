"""What a fault costs: one more attempt, a limited time, and nothing that stays behind."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tests.chaos.evidence import Evidence, Hit
from tests.chaos.guarantees.findings import Findings, completed


def attempts_are_deaths(evidence: Evidence, found: Findings) -> None:
    """An attempt is lost only with its worker's death or silence; a hand-back does not count as one."""
    died = Counter(hit.turn_id for hit in evidence.lasting() if hit.fault != "term")
    for turn_id, facts in completed(evidence):
        attempts, deaths = facts.turn.attempts, died[turn_id]
        found.expect(attempts == 1 + deaths, f"{turn_id}: {attempts} attempts, {deaths} deaths")


def recovered_in_time(evidence: Evidence, found: Findings) -> None:
    """A turn that was hit is answered within the limit after its last hit."""
    for hit, seconds in recoveries(evidence):
        good = seconds <= evidence.plan.recovery_limit
        found.expect(good, f"{hit.turn_id}: {seconds:.1f} s after a {hit.fault}")


def nothing_left(evidence: Evidence, found: Findings) -> None:
    """When all is done no lease, fence, ready turn, wake or queue is left, and what is left expires."""
    for turn_id, facts in completed(evidence):
        found.expect(facts.expires, f"{turn_id} is kept for ever")
    for name in evidence.leftovers:
        found.expect(False, name)


def handed_back(evidence: Evidence, found: Findings) -> None:
    """A worker that ends after SIGTERM holds nothing any more."""
    found.seen = sum(hit.fault == "term" for hit in evidence.hits)
    for turn_id in evidence.held_after_exit:
        found.expect(False, f"{turn_id} is held by a worker that has ended")


CONSUMING_SECONDS: Final = 10.0


def consuming_again(evidence: Evidence, found: Findings) -> None:
    """After Redis was killed and came back, workers take turns again within 10 s."""
    for seconds in pauses(evidence):
        found.expect(seconds <= CONSUMING_SECONDS, f"{seconds:.1f} s without a new provider call")


def pauses(evidence: Evidence) -> list[float]:
    """Seconds from each kill of Redis to the first provider call after it."""
    arrived = sorted(asked.arrived for asked in evidence.asked)
    return [next((at for at in arrived if at > outage), float("inf")) - outage for outage in evidence.outages]


def recoveries(evidence: Evidence) -> list[tuple[Hit, float]]:
    """The last hit of each turn that was hit, and the seconds from there to the turn's end."""
    last = {hit.turn_id: hit for hit in sorted(evidence.lasting(), key=lambda hit: hit.at)}
    ends = {turn_id: facts.turn.finished_at for turn_id, facts in evidence.facts.items()}
    return [(hit, (ends[hit.turn_id] or float("inf")) - hit.at) for hit in last.values()]
