"""A run that went well, for lies to be told about."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, get_args

from aiforge.core.events import Done, Event, Message, Queued, Reset, Started, Token
from aiforge.core.types import ProviderCall, Usage
from tests.chaos.evidence import Accepted, Asked, Evidence, Facts, Hit, Outage, Phase, Reading, Zombie
from tests.chaos.guarantees.recovery import EACH_PHASE
from tests.chaos.plan import Plan
from tests.chaos.provider import whole_answer
from tests.chaos.tap import Claimed
from worker.contract.calls.usage import UsageRow
from worker.contract.schemas import StoredMessage, Turn, TurnState

HIT, NEXT, BACK = "00" + "a" * 20, "00" + "b" * 20, "01" + "c" * 20
"""Killed and answered by its second attempt; queued behind it; handed back in another conversation."""
WORDS = 3
MODEL = ("openai", "gpt-4o-mini")
SAID_NOTHING = (MODEL[0], "")
"""Where calls are counted of which no model has said anything."""
LOST = {
    "calls:lost": Decimal(1),
    "lost:input": Decimal(10),
    "lost:output": Decimal(1),
    "lost:usd": Decimal("0.0000005"),
    "lost:estimated": Decimal("0.0000005"),
}
"""What one call counts for that died with its worker."""


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
        plan=Plan(seed=0, words=WORDS, faults={"kills": 100}),
        accepted={"c0": [Accepted(HIT, "hello?"), Accepted(NEXT, "and?")], "c1": [Accepted(BACK, "who?")]},
        refused=[],
        repeated=0,
        readings=[Reading(HIT, 10.0, list(enumerate(facts[HIT].log, start=1)))],
        hits=[
            Hit("kills", HIT, 1, "streaming", 15.0),
            Hit("rolls", BACK, 1, "streaming", 28.0),
            *_kills_elsewhere(),
        ],
        points=[],
        outages=[Outage("redis", 9.0, 9.5)],
        disturbed=[],
        zombies=[Zombie(held=2, refused=2, commit_refused=True)],
        claims=[Claimed(HIT, 1, 10.5), Claimed(BACK, 2, 28.5)],
        held_after_exit=[],
        late={},
        facts=facts,
        memory={
            "c0": [*_remembered(HIT, "hello?", 2), *_remembered(NEXT, "and?", 3)],
            "c1": _remembered(BACK, "who?", 5),
        },
        asked=asked,
        totals=_totals(),
        usage=_usage(),
        leftovers=[],
        seconds=30.0,
    )  # fmt: skip


def _kills_elsewhere() -> list[Hit]:
    """Ten for each phase, of a turn that was answered all the same."""
    return [
        Hit("kills", BACK, 1, phase, 25.0 + kill / 10)
        for phase in get_args(Phase)
        for kill in range(EACH_PHASE)
    ]


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
            cost=Decimal("0.0000015" if first == "lost" and len(calls) > 1 else "0.000001"),
        ),
        fence=len(calls),
        log=[*log, Message(answer), Done()],
        ledger=[row(turn_id, number, outcome) for number, outcome in zip(calls, outcomes, strict=True)],
        expires=True,
    )


def row(turn_id: str, number: int, outcome: Any) -> ProviderCall:
    usage, cost = {
        "ok": (Usage(10, WORDS), Decimal("0.000001")),
        "lost": (Usage(10, 1, estimated=True), LOST["lost:usd"]),
    }.get(outcome, (None, None))
    return ProviderCall(
        call_id=f"{turn_id}.{number}",
        purpose="answer",
        provider=MODEL[0],
        model=MODEL[1],
        outcome=outcome,
        usage=usage,
        cost=cost,
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


def _totals() -> dict[tuple[str, str], dict[str, Decimal]]:
    return {
        MODEL: {
            "calls:ok": Decimal(3),
            "input": Decimal(30),
            "output": Decimal(9),
            "usd": Decimal("0.000003"),
            **LOST,
        },
        SAID_NOTHING: {"calls:aborted": Decimal(1)},
    }


def _usage() -> list[UsageRow]:
    return [
        UsageRow(
            provider=MODEL[0],
            model=MODEL[1],
            calls=4,
            lost_calls=1,
            input_tokens=40,
            output_tokens=10,
            cost=Decimal("0.0000035"),
            estimated_cost=Decimal("0.0000005"),
        ),
        UsageRow(provider=SAID_NOTHING[0], model=SAID_NOTHING[1], calls=1, failed_calls=1),
    ]
