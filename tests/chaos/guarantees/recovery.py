"""What a fault costs: one more attempt, a limited time, and nothing that stays behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, get_args

from tests.chaos.evidence import HANDED_BACK, OUTAGES, Evidence, Hit, Phase
from tests.chaos.guarantees.findings import Findings, completed, completed_of
from tests.chaos.plan import Fault

CONSUMING_SECONDS: Final = 10.0
HAND_BACK_SECONDS: Final = 2.0
MANY_KILLS: Final = 100
EACH_PHASE: Final = 10
"""Kills that must have hit a turn in each phase, where there are many."""
_OF_ALL: Final[frozenset[Fault]] = OUTAGES - {"links"}
"""Outages that befall every process."""


def attempts_are_deaths(evidence: Evidence, found: Findings) -> None:
    """An attempt is lost only with its worker's death or silence; a hand-back does not count as one."""
    died = Counter(hit.turn_id for hit in evidence.lasting() if hit.fault not in HANDED_BACK)
    for turn_id, facts in completed(evidence):
        attempts, deaths = facts.turn.attempts, died[turn_id]
        found.expect(attempts == 1 + deaths, f"{turn_id}: {attempts} attempts, {deaths} deaths")


def recovered_in_time(evidence: Evidence, found: Findings) -> None:
    """A turn that was hit is answered within the limit after its last hit."""
    for hit, seconds in recoveries(evidence):
        good = seconds <= evidence.plan.most
        found.expect(good, f"{hit.turn_id}: {seconds:.1f} s after one of {hit.fault}")


def never_kept_waiting(evidence: Evidence, found: Findings) -> None:
    """A turn that was never hit takes no longer either, whoever's death or outage lost its wake-up."""
    for turn_id, seconds in undisturbed(evidence):
        good = seconds <= evidence.plan.most
        found.expect(good, f"{turn_id}: {seconds:.1f} s from coming up to the answer")


def recovered_soon(evidence: Evidence, found: Findings) -> None:
    """95 of 100 turns that were hit are answered about a lease after it."""
    ends = [seconds for _, seconds in recoveries(evidence)]
    if ends:
        usual = share(ends, 0.95)
        found.expect(usual <= evidence.plan.usual, f"{usual:.1f} s, not {evidence.plan.usual:g} s")


def nothing_left(evidence: Evidence, found: Findings) -> None:
    """When all is done no lease, fence, ready turn, wake or queue is left, and what is left expires."""
    for turn_id, facts in completed(evidence):
        found.expect(facts.expires, f"{turn_id} is kept for ever")
    for name in evidence.leftovers:
        found.expect(False, name)


def handed_back(evidence: Evidence, found: Findings) -> None:
    """A worker that ends after SIGTERM holds nothing any more."""
    found.seen = sum(hit.fault in HANDED_BACK for hit in evidence.hits)
    for turn_id in evidence.held_after_exit:
        found.expect(False, f"{turn_id} is held by a worker that has ended")


def handed_back_soon(evidence: Evidence, found: Findings) -> None:
    """In a rolling restart another worker has a turn 2 s after SIGTERM, by Redis's clock."""
    for hit, seconds in hand_backs(evidence):
        found.expect(seconds <= HAND_BACK_SECONDS, f"{hit.turn_id}: claimed again after {seconds:.2f} s")


def zombies_refused(evidence: Evidence, found: Findings) -> None:
    """What a stopped worker does after it woke comes too late and is refused, for every turn that it held."""
    for zombie in evidence.zombies:
        found.seen += zombie.held - 1
        found.expect(zombie.commit_refused and zombie.refused >= zombie.held, f"{zombie}")


def every_phase_hit(evidence: Evidence, found: Findings) -> None:
    """With 100 kills and more, at least ten have hit a turn in each phase of its life."""
    if evidence.plan.faults.get("kills", 0) >= MANY_KILLS:
        for phase, kills in phases(evidence).items():
            found.expect(kills >= EACH_PHASE, f"{kills} kills {phase}")


def consuming_again(evidence: Evidence, found: Findings) -> None:
    """After Redis was away, workers take turns again within 10 s."""
    for fault, seconds in pauses(evidence):
        found.expect(seconds <= CONSUMING_SECONDS, f"{seconds:.1f} s without a claim after one of {fault}")


def phases(evidence: Evidence) -> dict[Phase, int]:
    """How many kills hit a turn in each phase."""
    kills = {(hit.phase, hit.at) for hit in evidence.hits if hit.fault in ("kills", "points")}
    count = Counter(phase for phase, _ in kills)
    return {phase: count[phase] for phase in get_args(Phase)}


def pauses(evidence: Evidence) -> list[tuple[Fault, float]]:
    """Seconds from each loss of Redis, or the end of its being full, to the first claim from then on."""
    return [
        (
            outage.fault,
            min((claim.at for claim in evidence.claims if claim.at > since), default=float("inf")) - since,
        )
        for outage in evidence.outages
        if outage.fault in _OF_ALL
        for since in (outage.ended if outage.fault == "full" else outage.began,)
    ]


def hand_backs(evidence: Evidence) -> list[tuple[Hit, float]]:
    """Seconds from a rolling restart's SIGTERM to the next claim of each turn that was handed back."""
    claims = {(claim.turn_id, claim.fence): claim.at for claim in evidence.claims}
    return [
        (hit, claims.get((hit.turn_id, hit.fence + 1), float("inf")) - hit.at)
        for hit in evidence.lasting()
        if hit.fault == "rolls"
    ]


def recoveries(evidence: Evidence) -> list[tuple[Hit, float]]:
    """The last hit of each turn that was hit, and the seconds from there to the turn's end.

    A later time without Redis does not count: nothing can recover then.
    """
    lasting = [*evidence.lasting(), *(hit for hit in evidence.hits if hit.phase == "before the claim")]
    found = []
    for hit in {hit.turn_id: hit for hit in sorted(lasting, key=lambda hit: hit.at)}.values():
        facts = evidence.facts.get(hit.turn_id)
        end = (facts.turn.finished_at if facts is not None else None) or float("inf")
        away = [outage.ended for outage in evidence.outages if hit.at < outage.ended and outage.began < end]
        found.append((hit, end - max([hit.at, *away])))
    return found


def undisturbed(evidence: Evidence) -> list[tuple[str, float]]:
    """Each turn that was answered and never hit, and the seconds from when it came up in its conversation.

    A time without Redis does not count.
    """
    hit, found = {hit.turn_id for hit in evidence.hits}, []
    for turns in evidence.accepted.values():
        before = 0.0
        for turn, facts in completed_of(evidence, turns):
            since, end = max(facts.turn.created_at, before), facts.turn.finished_at or 0.0
            away = (min(end, outage.ended) - max(since, outage.began) for outage in evidence.outages)
            if turn.turn_id not in hit:
                found.append((turn.turn_id, end - since - sum(max(0.0, seconds) for seconds in away)))
            before = end
    return found


def share(values: Sequence[float], part: float) -> float:
    """The value that `part` of all values do not exceed."""
    ordered = sorted(values) or [0.0]
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
