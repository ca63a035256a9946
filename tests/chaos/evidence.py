"""All that is known after a run: what callers were told, what is stored, and what the provider saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from aiforge.core.events import Event
from aiforge.core.types import ProviderCall
from tests.chaos.plan import Fault, Plan
from worker.contract.schemas import StoredMessage, Turn

Phase = Literal["before the first token", "streaming", "before the commit"]


class Accepted(NamedTuple):
    """A turn that the API answered 202 for."""

    turn_id: str
    question: str


class Hit(NamedTuple):
    """A turn that ran in a worker when that was struck; `at` is in Unix seconds."""

    fault: Fault
    turn_id: str
    fence: int
    phase: Phase
    at: float


@dataclass
class Reading:
    """What one reader got; `opened` is when its first event came, `broken` why it has no end."""

    turn_id: str
    opened: float = 0.0
    events: list[tuple[int, Event]] = field(default_factory=list)
    broken: str | None = None


class Asked(NamedTuple):
    """One call in the provider's own log."""

    number: int
    call_id: str
    arrived: float
    messages: list[dict[str, Any]]


class Facts(NamedTuple):
    """What is stored of a turn; `expires` says whether all of it is forgotten one day."""

    turn: Turn
    fence: int
    log: list[Event]
    ledger: list[ProviderCall]
    expires: bool


@dataclass(kw_only=True)
class Evidence:
    plan: Plan
    accepted: dict[str, list[Accepted]]
    """By conversation, in the order of the answers 202."""
    refused: list[str]
    """Why submissions were not accepted."""
    readings: list[Reading]
    hits: list[Hit]
    outages: list[float]
    """When the Redis server was killed, in Unix seconds."""
    held_after_exit: list[str]
    """Turns that a worker still held when it had ended after SIGTERM."""
    late: dict[str, int]
    """What came too late and was refused, as the workers count it: commits (`refused`), tokens (`lost`)."""
    facts: dict[str, Facts]
    """By turn."""
    memory: dict[str, list[StoredMessage]]
    """By conversation."""
    asked: list[Asked]
    totals: dict[tuple[str, str], dict[str, Decimal]]
    """The ledger's sums by provider and model."""
    leftovers: list[str]
    """Keys and fields that must be gone when nothing runs."""
    seconds: float
    """How long turns were submitted."""

    def lasting(self) -> list[Hit]:
        """The hits that cost a turn its attempt: a commit or hand-back on its way may still have arrived."""
        return [
            hit
            for hit in self.hits
            if hit.turn_id in self.facts and self.facts[hit.turn_id].fence > hit.fence
        ]

    def read_along(self) -> list[tuple[Reading, Facts]]:
        """Each reader, and what is stored of its turn."""
        return [
            (reading, self.facts[reading.turn_id])
            for reading in self.readings
            if reading.turn_id in self.facts
        ]
