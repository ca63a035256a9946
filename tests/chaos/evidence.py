"""All that is known after a run: what callers were told, what is stored, and what the provider saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple

from aiforge.core.events import Event
from aiforge.core.types import ProviderCall
from tests.chaos.plan import Fault, Plan, Point
from tests.chaos.tap import Claimed
from worker.contract.calls.usage import UsageRow
from worker.contract.schemas import StoredMessage, Turn

Phase = Literal[
    "before the claim", "before the first token", "streaming", "before the commit", "after the commit"
]
HANDED_BACK: Final[frozenset[Fault]] = frozenset({"storms", "rolls"})
"""Faults after which a worker gives its turns back: no attempt is lost by them."""
OUTAGES: Final[frozenset[Fault]] = frozenset({"redis", "restarts", "full", "clients", "links"})
"""Faults that a worker lives through; an attempt is only lost if they outlast its lease."""


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


class Zombie(NamedTuple):
    """A worker that was stopped, and woke when others had all its turns."""

    held: int
    """Turns that it had when it was stopped, and another had when it woke."""
    refused: int
    """Of these, those for which Redis refused what it sent then: a commit, tokens, or a heartbeat."""
    commit_refused: bool
    """Whether Redis refused the commit that had been on its way all the time."""


class Outage(NamedTuple):
    """A time without Redis, in Unix seconds."""

    fault: Fault
    began: float
    ended: float


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
    """Why submissions were not accepted, however often they were repeated."""
    repeated: int
    """How many submissions were sent again under their key, as the first had no answer."""
    readings: list[Reading]
    hits: list[Hit]
    points: list[Point]
    """Where API and workers were killed between two steps."""
    outages: list[Outage]
    disturbed: list[tuple[float, float]]
    """When the line to the provider was disturbed, from and to, in Unix seconds."""
    zombies: list[Zombie]
    claims: list[Claimed]
    """Every claim that was granted."""
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
    """The ledger's sums by provider and model, as they are shown as metrics."""
    usage: list[UsageRow]
    """The same by day, from the tenant's account."""
    leftovers: list[str]
    """Keys and fields that must be gone when nothing runs."""
    seconds: float
    """How long turns were submitted."""
    lag: float = 0.0
    """By how many seconds the driver itself was late, at most: as much is added to whatever it passes on."""

    def lasting(self) -> list[Hit]:
        """The hits that cost a turn its attempt, one for each: a commit or hand-back on its way may still
        have arrived, and an outage that was outlived costs nothing."""
        last: dict[tuple[str, int], Hit] = {}
        for hit in self.hits:
            ran = hit.phase not in ("before the claim", "after the commit")
            if ran and hit.turn_id in self.facts and self.facts[hit.turn_id].fence > hit.fence:
                known = last.get((hit.turn_id, hit.fence))
                if known is None or known.fault in OUTAGES:
                    last[hit.turn_id, hit.fence] = hit
        return list(last.values())

    def read_along(self) -> list[tuple[Reading, Facts]]:
        """Each reader, and what is stored of its turn."""
        return [
            (reading, self.facts[reading.turn_id])
            for reading in self.readings
            if reading.turn_id in self.facts
        ]
