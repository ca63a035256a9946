"""The oracle has to be able to say no: each lie about a run that went well is found by its guarantee."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from aiforge.core.events import Done, Event, Failed, Message, Queued, Reset, Started, Token
from aiforge.core.types import ProviderCall, Usage
from tests.chaos.evidence import Accepted, Asked, Evidence, Facts, Hit, Reading
from tests.chaos.oracle import broken, judge, untried
from tests.chaos.plan import Plan
from tests.chaos.provider import whole_answer
from worker.contract.schemas import StoredMessage, Turn, TurnFailure, TurnState

HIT, NEXT, BACK = "00" + "a" * 20, "00" + "b" * 20, "01" + "c" * 20
"""Killed and answered by its second attempt; queued behind it; handed back in another conversation."""
WORDS = 3
MODEL = ("openai", "gpt-4o-mini")
LOST = ("openai", "")
"""Whose model is not told from what was asked."""
Lie = Callable[[Evidence], None]


def honest() -> Evidence:
    """Three turns, five provider calls, one kill, one hand-back, and all of it right."""
    facts = {
        HIT: _facts(HIT, "c0", [1, 2], attempts=2, first="lost", finished=30.0),
        NEXT: _facts(NEXT, "c0", [3], attempts=1, finished=32.0),
        BACK: _facts(BACK, "c1", [4, 5], attempts=1, first="aborted", finished=30.0),
    }
    asked = [
        _asked(1, HIT, "hello?"),
        _asked(2, HIT, "hello?"),
        _asked(3, NEXT, "hello?", whole_answer(2, WORDS), "and?"),
        _asked(4, BACK, "who?"),
        _asked(5, BACK, "who?"),
    ]
    return Evidence(
        plan=Plan(seed=0, words=WORDS),
        accepted={"c0": [Accepted(HIT, "hello?"), Accepted(NEXT, "and?")], "c1": [Accepted(BACK, "who?")]},
        refused=[],
        readings=[Reading(HIT, 10.0, list(enumerate(facts[HIT].log, start=1)))],
        hits=[Hit("kill", HIT, 1, "streaming", 15.0), Hit("term", BACK, 1, "streaming", 28.0)],
        outages=[9.0],
        held_after_exit=[],
        late={},
        facts=facts,
        memory={
            "c0": [*_remembered(HIT, "hello?", 2), *_remembered(NEXT, "and?", 3)],
            "c1": _remembered(BACK, "who?", 5),
        },
        asked=asked,
        totals={
            MODEL: {
                "calls:ok": Decimal(3), "calls:aborted": Decimal(1),
                "input": Decimal(30), "output": Decimal(9), "usd": Decimal("0.000003"),
            },
            LOST: {"calls:lost": Decimal(1)},
        },
        leftovers=[],
        seconds=30.0,
    )  # fmt: skip


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
    evidence.totals[LOST]["calls:lost"] -= 1


def _row_elsewhere(evidence: Evidence) -> None:
    evidence.facts[NEXT].ledger.append(evidence.facts[HIT].ledger.pop(0))


def _asked_twice_as_one(evidence: Evidence) -> None:
    evidence.asked.append(evidence.asked[0]._replace(number=6))


def _paid_for_nothing(evidence: Evidence) -> None:
    evidence.facts[NEXT].ledger.append(_row(NEXT, 9, "ok"))
    _pay(evidence, calls=1, tokens=(10, 3), usd="0.000001")


def _row_left_open(evidence: Evidence) -> None:
    ledger = evidence.facts[HIT].ledger
    ledger[0] = msgspec.structs.replace(ledger[0], outcome="intended")
    evidence.totals[MODEL]["calls:intended"] = evidence.totals[LOST].pop("calls:lost")


def _answer_unpaid(evidence: Evidence) -> None:
    ledger = evidence.facts[NEXT].ledger
    ledger[0] = _row(NEXT, 3, "lost")
    _pay(evidence, calls=-1, tokens=(-10, -3), usd="-0.000001")
    evidence.totals[LOST]["calls:lost"] += 1


def _counted_twice(evidence: Evidence) -> None:
    evidence.totals[MODEL]["usd"] += Decimal("0.000000000001")


def _lost_without_a_death(evidence: Evidence) -> None:
    _change(evidence, NEXT, attempts=2)


def _hand_back_counted(evidence: Evidence) -> None:
    _change(evidence, BACK, attempts=2)


def _too_slow(evidence: Evidence) -> None:
    _change(evidence, BACK, finished_at=28.1 + evidence.plan.recovery_limit)


def _held_after_exit(evidence: Evidence) -> None:
    evidence.held_after_exit.append(BACK)


def _lease_left(evidence: Evidence) -> None:
    evidence.leftovers.append("{chaos:00}:leases")


def _kept_for_ever(evidence: Evidence) -> None:
    evidence.facts[NEXT] = evidence.facts[NEXT]._replace(expires=False)


def _no_call_after_an_outage(evidence: Evidence) -> None:
    evidence.outages.append(1_000.0)


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
    (_paid_for_nothing, {"every_row_settled"}),
    (_row_left_open, {"every_row_settled"}),
    (_answer_unpaid, {"answer_is_paid"}),
    (_counted_twice, {"sums_agree"}),
    (_lost_without_a_death, {"attempts_are_deaths"}),
    (_hand_back_counted, {"attempts_are_deaths"}),
    (_too_slow, {"recovered_in_time"}),
    (_no_call_after_an_outage, {"consuming_again"}),
    (_held_after_exit, {"handed_back"}),
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


def _facts(
    turn_id: str, conversation: str, calls: list[int], *, attempts: int, finished: float, first: Any = "ok"
) -> Facts:
    """A turn whose last call was answered; with two calls its first run broke off after one word."""
    answer = whole_answer(calls[-1], WORDS)
    log: list[Event] = [Queued(), Started(1)]
    if len(calls) > 1:
        log += [Token(f"{calls[0]}.0 "), Reset(2), Started(2)]
    log += [Token(f"{calls[-1]}.{position} ") for position in range(WORDS)]
    outcomes = [first, "ok"][-len(calls) :]
    return Facts(
        turn=Turn(
            turn_id=turn_id,
            conversation_id=conversation,
            state=TurnState.COMPLETED,
            answer=answer,
            attempts=attempts,
            created_at=1.0,
            finished_at=finished,
        ),
        fence=len(calls),
        log=[*log, Message(answer), Done()],
        ledger=[_row(turn_id, number, outcome) for number, outcome in zip(calls, outcomes, strict=True)],
        expires=True,
    )


def _row(turn_id: str, number: int, outcome: Any) -> ProviderCall:
    paid = outcome == "ok"
    return ProviderCall(
        call_id=f"{turn_id}.{number}",
        purpose="answer",
        provider=MODEL[0],
        model=MODEL[1],
        outcome=outcome,
        usage=Usage(10, WORDS) if paid else None,
        cost=Decimal("0.000001") if paid else None,
    )


def _asked(number: int, turn_id: str, *told: str) -> Asked:
    roles = ("user", "assistant")
    lines = [{"role": roles[place % 2], "content": text} for place, text in enumerate(told)]
    return Asked(
        number, f"{turn_id}.{number}", 10.0 + number, [{"role": "system", "content": "Be brief."}, *lines]
    )


def _remembered(turn_id: str, question: str, number: int) -> list[StoredMessage]:
    return [
        StoredMessage(role="user", content=question, turn_id=turn_id),
        StoredMessage(role="assistant", content=whole_answer(number, WORDS), turn_id=turn_id),
    ]


def _change(evidence: Evidence, turn_id: str, **fields: Any) -> None:
    facts = evidence.facts[turn_id]
    evidence.facts[turn_id] = facts._replace(turn=msgspec.structs.replace(facts.turn, **fields))


def _pay(evidence: Evidence, *, calls: int, tokens: tuple[int, int], usd: str) -> None:
    totals = evidence.totals[MODEL]
    totals["calls:ok"] += calls
    totals["input"] += tokens[0]
    totals["output"] += tokens[1]
    totals["usd"] += Decimal(usd)
