"""Judges a run by every guarantee: a function whose docstring says it and whose body proves it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tests.chaos.evidence import Evidence
from tests.chaos.guarantees import memory, money, recovery, streams
from tests.chaos.guarantees.findings import Findings

GUARANTEES: Final[tuple[Callable[[Evidence, Findings], None], ...]] = (
    memory.accepted,
    memory.answered,
    memory.remembered_once,
    memory.in_order,
    memory.of_one_call,
    memory.in_context,
    streams.one_end,
    streams.reset_between,
    streams.text_is_answer,
    streams.read_whole,
    streams.read_again,
    money.every_call_known,
    money.every_row_settled,
    money.answer_is_paid,
    money.sums_agree,
    money.usage_agrees,
    recovery.attempts_are_deaths,
    recovery.recovered_in_time,
    recovery.never_kept_waiting,
    recovery.recovered_soon,
    recovery.consuming_again,
    recovery.handed_back,
    recovery.handed_back_soon,
    recovery.zombies_refused,
    recovery.every_phase_hit,
    recovery.nothing_left,
)


class Verdict(NamedTuple):
    """What came out for one guarantee."""

    name: str
    guarantee: str
    findings: Findings


def judge(evidence: Evidence) -> list[Verdict]:
    """Every guarantee's findings; the run is good when none has anything wrong."""
    verdicts = []
    for guarantee in GUARANTEES:
        findings = Findings()
        guarantee(evidence, findings)
        verdicts.append(Verdict(guarantee.__name__, guarantee.__doc__ or "", findings))
    return verdicts


def broken(verdicts: Sequence[Verdict]) -> list[str]:
    """The names of the guarantees that did not hold."""
    return [verdict.name for verdict in verdicts if verdict.findings.wrong]


def untried(verdicts: Sequence[Verdict]) -> list[str]:
    """The names of the guarantees for which the run had nothing to look at."""
    return [verdict.name for verdict in verdicts if not verdict.findings.seen]
