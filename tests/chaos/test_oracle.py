"""The oracle has to be able to say no: each lie about a run that went well is found by its guarantee."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from aiforge.core.events import Done, Failed, Message, Reset, Token
from tests.chaos.evidence import Evidence, Outage, Zombie
from tests.chaos.honest import BACK, HIT, LOST, MODEL, NEXT, SAID_NOTHING, honest, row
from tests.chaos.oracle import broken, judge, untried
from tests.chaos.tap import Claimed
from worker.contract.schemas import TurnFailure, TurnState

Lie = Callable[[Evidence], None]


def test_an_honest_run_passes() -> None:
    verdicts = judge(honest())
    assert broken(verdicts) == []
    assert untried(verdicts) == []


def _submission_refused(evidence: Evidence) -> None:
    evidence.refused.append("c9 asks 0: the store does not answer")


def _turn_is_gone(evidence: Evidence) -> None:
    del evidence.facts[NEXT]
    del evidence.memory["c0"][2:]
    del evidence.asked[2]
    _pay(evidence, calls=-1, tokens=(-10, -3), usd="-0.000001")


def _turn_never_ends(evidence: Evidence) -> None:
    _change(evidence, NEXT, state=TurnState.QUEUED, answer=None, finished_at=None)
    del evidence.memory["c0"][2:]


def _dead_letter(evidence: Evidence) -> None:
    failure = TurnFailure("dead_lettered", "every worker that ran this died")
    _change(evidence, NEXT, state=TurnState.FAILED, answer=None, error=failure)
    del evidence.memory["c0"][2:]


def _answered_twice(evidence: Evidence) -> None:
    evidence.memory["c0"].insert(1, evidence.memory["c0"][1])


def _answer_forgotten(evidence: Evidence) -> None:
    del evidence.memory["c1"][1]


def _order_lost_in_memory(evidence: Evidence) -> None:
    memory = evidence.memory["c0"]
    memory[:] = [*memory[2:], *memory[:2]]


def _overtaken(evidence: Evidence) -> None:
    _change(evidence, NEXT, finished_at=29.0)


def _mixture_everywhere(evidence: Evidence) -> None:
    """Both attempts wrote, and every place that keeps the answer agrees."""
    mixture = "2.0 2.1 1.2 "
    _change(evidence, HIT, answer=mixture)
    log = evidence.facts[HIT].log
    log[-3:] = [Token("1.2 "), Message(mixture), Done()]
    evidence.readings[0].events = list(enumerate(log, start=1))
    evidence.memory["c0"][1] = msgspec.structs.replace(evidence.memory["c0"][1], content=mixture)
    evidence.asked[2].messages[2]["content"] = mixture


def _asked_without_the_past(evidence: Evidence) -> None:
    del evidence.asked[2].messages[1:3]


def _two_ends(evidence: Evidence) -> None:
    evidence.facts[NEXT].log.append(Done())


def _end_contradicted(evidence: Evidence) -> None:
    evidence.facts[NEXT].log.insert(2, Failed("internal_error", "no"))


def _no_reset(evidence: Evidence) -> None:
    log = evidence.facts[BACK].log
    log.remove(Reset(2))


def _late_tokens_in_the_log(evidence: Evidence) -> None:
    evidence.facts[NEXT].log.insert(2, Token("1.2 "))


def _reader_misses_one(evidence: Evidence) -> None:
    del evidence.readings[0].events[1]


def _reader_is_cut_off(evidence: Evidence) -> None:
    evidence.readings[0].broken = "the turn does not end"


def _reader_sees_no_reset(evidence: Evidence) -> None:
    events = evidence.readings[0].events
    events[:] = [pair for pair in events if not isinstance(pair[1], Reset)]


def _row_missing(evidence: Evidence) -> None:
    del evidence.facts[HIT].ledger[0]
    _lose(evidence, -1)
    _change(evidence, HIT, cost=Decimal("0.000001"))


def _row_elsewhere(evidence: Evidence) -> None:
    evidence.facts[NEXT].ledger.append(evidence.facts[HIT].ledger.pop(0))
    for turn_id, cost in ((HIT, "0.000001"), (NEXT, "0.0000015")):
        _change(evidence, turn_id, cost=Decimal(cost))


def _asked_twice_as_one(evidence: Evidence) -> None:
    evidence.asked.append(evidence.asked[0]._replace(number=6))


def _paid_for_nothing(evidence: Evidence) -> None:
    evidence.facts[NEXT].ledger.append(row(NEXT, 9, "ok"))
    _pay(evidence, calls=1, tokens=(10, 3), usd="0.000001")


def _row_left_open(evidence: Evidence) -> None:
    ledger = evidence.facts[HIT].ledger
    ledger[0] = msgspec.structs.replace(ledger[0], outcome="intended", usage=None, cost=None)
    _lose(evidence, -1)
    evidence.totals[SAID_NOTHING]["calls:intended"] = Decimal(1)
    evidence.usage[1].calls += 1
    _change(evidence, HIT, cost=Decimal("0.000001"))


def _answer_unpaid(evidence: Evidence) -> None:
    ledger = evidence.facts[NEXT].ledger
    ledger[0] = row(NEXT, 3, "lost")
    _pay(evidence, calls=-1, tokens=(-10, -3), usd="-0.000001")
    _lose(evidence, 1)


def _cost_of_another(evidence: Evidence) -> None:
    _change(evidence, NEXT, cost=Decimal("0.000002"))


def _counted_twice(evidence: Evidence) -> None:
    evidence.totals[MODEL]["usd"] += Decimal("0.000000000001")
    evidence.usage[0].cost += Decimal("0.000000000001")


def _day_without_a_call(evidence: Evidence) -> None:
    evidence.usage[0].calls -= 1


def _lost_without_a_death(evidence: Evidence) -> None:
    _change(evidence, NEXT, attempts=2)


def _hand_back_counted(evidence: Evidence) -> None:
    _change(evidence, BACK, attempts=2)


def _too_slow(evidence: Evidence) -> None:
    _change(evidence, BACK, finished_at=28.1 + evidence.plan.most)


def _wake_up_never_missed(evidence: Evidence) -> None:
    _change(evidence, NEXT, finished_at=30.1 + evidence.plan.most)


def _a_little_slow(evidence: Evidence) -> None:
    _change(evidence, BACK, finished_at=28.1 + evidence.plan.usual)


def _handed_back_late(evidence: Evidence) -> None:
    evidence.claims[1] = Claimed(BACK, 2, 30.1)


def _zombies_commit_accepted(evidence: Evidence) -> None:
    evidence.zombies[0] = Zombie(held=2, refused=2, commit_refused=False)


def _zombies_tokens_accepted(evidence: Evidence) -> None:
    evidence.zombies[0] = Zombie(held=2, refused=1, commit_refused=True)


def _nobody_killed_before_a_claim(evidence: Evidence) -> None:
    evidence.hits = [hit for hit in evidence.hits if hit.phase != "before the claim"]


def _held_after_exit(evidence: Evidence) -> None:
    evidence.held_after_exit.append(BACK)


def _lease_left(evidence: Evidence) -> None:
    evidence.leftovers.append("{chaos:00}:leases")


def _kept_for_ever(evidence: Evidence) -> None:
    evidence.facts[NEXT] = evidence.facts[NEXT]._replace(expires=False)


def _no_call_after_an_outage(evidence: Evidence) -> None:
    evidence.outages.append(Outage("redis", 1_000.0, 1_000.5))


LIES: list[tuple[Lie, set[str]]] = [
    (_submission_refused, {"accepted"}),
    (_turn_is_gone, {"answered"}),
    (_turn_never_ends, {"answered"}),
    (_dead_letter, {"answered"}),
    (_answered_twice, {"remembered_once"}),
    (_answer_forgotten, {"remembered_once"}),
    (_order_lost_in_memory, {"remembered_once"}),
    (_overtaken, {"in_order"}),
    (_mixture_everywhere, {"of_one_call"}),
    (_asked_without_the_past, {"in_context"}),
    (_two_ends, {"one_end"}),
    (_end_contradicted, {"one_end"}),
    (_no_reset, {"reset_between", "text_is_answer"}),
    (_late_tokens_in_the_log, {"text_is_answer"}),
    (_reader_misses_one, {"read_whole"}),
    (_reader_is_cut_off, {"read_whole"}),
    (_reader_sees_no_reset, {"read_whole", "read_again"}),
    (_row_missing, {"every_call_known"}),
    (_row_elsewhere, {"every_call_known"}),
    (_asked_twice_as_one, {"every_call_known"}),
    (_paid_for_nothing, {"every_row_settled", "answer_is_paid"}),
    (_row_left_open, {"every_row_settled"}),
    (_answer_unpaid, {"answer_is_paid"}),
    (_cost_of_another, {"answer_is_paid"}),
    (_counted_twice, {"sums_agree"}),
    (_day_without_a_call, {"usage_agrees"}),
    (_lost_without_a_death, {"attempts_are_deaths"}),
    (_hand_back_counted, {"attempts_are_deaths"}),
    (_too_slow, {"recovered_in_time", "recovered_soon"}),
    (_wake_up_never_missed, {"never_kept_waiting"}),
    (_a_little_slow, {"recovered_soon"}),
    (_no_call_after_an_outage, {"consuming_again"}),
    (_held_after_exit, {"handed_back"}),
    (_handed_back_late, {"handed_back_soon"}),
    (_zombies_commit_accepted, {"zombies_refused"}),
    (_zombies_tokens_accepted, {"zombies_refused"}),
    (_nobody_killed_before_a_claim, {"every_phase_hit"}),
    (_lease_left, {"nothing_left"}),
    (_kept_for_ever, {"nothing_left"}),
]


@pytest.mark.parametrize(("lie", "guarantees"), LIES, ids=[lie.__name__.strip("_") for lie, _ in LIES])
def test_a_lie_is_found(lie: Lie, guarantees: set[str]) -> None:
    evidence = honest()
    lie(evidence)
    assert set(broken(judge(evidence))) == guarantees


def test_every_guarantee_can_be_broken() -> None:
    assert {name for _, names in LIES for name in names} == {verdict.name for verdict in judge(honest())}


def _change(evidence: Evidence, turn_id: str, **fields: Any) -> None:
    facts = evidence.facts[turn_id]
    evidence.facts[turn_id] = facts._replace(turn=msgspec.structs.replace(facts.turn, **fields))


def _lose(evidence: Evidence, calls: int) -> None:
    totals, row = evidence.totals[MODEL], evidence.usage[0]
    for name, amount in LOST.items():
        totals[name] += calls * amount
    row.calls += calls
    row.lost_calls += calls
    row.input_tokens += calls * 10
    row.output_tokens += calls
    row.cost += calls * LOST["lost:usd"]
    row.estimated_cost += calls * LOST["lost:estimated"]


def _pay(evidence: Evidence, *, calls: int, tokens: tuple[int, int], usd: str) -> None:
    totals = evidence.totals[MODEL]
    totals["calls:ok"] += calls
    totals["input"] += tokens[0]
    totals["output"] += tokens[1]
    totals["usd"] += Decimal(usd)
    row = evidence.usage[0]
    row.calls += calls
    row.input_tokens += tokens[0]
    row.output_tokens += tokens[1]
    row.cost += Decimal(usd)
