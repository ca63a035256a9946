"""What a check hands back, and the few words that all checks share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from aiforge.core.events import Event, Message, Reset, Token
from tests.chaos.evidence import Accepted, Evidence, Facts
from worker.contract.schemas import TurnState


@dataclass
class Findings:
    """How many things a check looked at, and what was wrong with some of them."""

    seen: int = 0
    wrong: list[str] = field(default_factory=list)

    def expect(self, good: bool, otherwise: str) -> None:
        self.seen += 1
        if not good:
            self.wrong.append(otherwise)


def completed(evidence: Evidence) -> Iterator[tuple[str, Facts]]:
    """Every turn that has an answer."""
    for turn_id, facts in evidence.facts.items():
        if facts.turn.state is TurnState.COMPLETED:
            yield turn_id, facts


def completed_of(evidence: Evidence, turns: list[Accepted]) -> Iterator[tuple[Accepted, Facts]]:
    """Those of a conversation's turns that have an answer, in the order asked."""
    for turn in turns:
        facts = evidence.facts.get(turn.turn_id)
        if facts is not None and facts.turn.state is TurnState.COMPLETED:
            yield turn, facts


def text(events: list[Event]) -> str:
    """What a reader has on its screen: the tokens since the last reset."""
    shown = ""
    for event in events:
        if isinstance(event, Reset):
            shown = ""
        elif isinstance(event, Token):
            shown += event.text
    return shown


def shows(events: list[Event], answer: str | None) -> bool:
    """Whether the tokens since the last reset, and the one `message`, are this answer."""
    messages = [event.text for event in events if isinstance(event, Message)]
    return messages == [answer] and text(events) == answer


def turn_of(call_id: str) -> str:
    """The turn that made a provider call."""
    return call_id.partition(".")[0]


def call_of(facts: Facts) -> int:
    """The provider call that the stored answer's first word names, 0 when it names none."""
    first = (facts.turn.answer or "").partition(".")[0]
    return int(first) if first.isdecimal() else 0
