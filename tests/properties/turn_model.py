"""What turns are, in plain Python: the reference that the scripts are compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from aiforge.core.events import Event, Queued, Reset, Started
from worker.contract.schemas import TERMINAL_STATES, TurnState

MAX_ATTEMPTS: Final = 3


@dataclass(eq=False)
class Attempt:
    """One claim that was granted; it may be long superseded."""

    turn: ModelTurn
    fence: int
    token: str
    said: int = 0
    """How many events it has had appended."""
    calls: int = 1
    """How many provider calls it entered in the ledger."""

    @property
    def current(self) -> bool:
        """Whether it still holds its turn."""
        return self.turn.state is TurnState.RUNNING and self.turn.fence == self.fence

    def call_id(self, number: int) -> str:
        return f"{self.turn.turn_id}.{self.token}.{number}"


@dataclass(eq=False)
class ModelTurn:
    turn_id: str
    conversation: ModelConversation
    message: str
    state: TurnState = TurnState.QUEUED
    fence: int = 0
    attempts: int = 0
    crashes: int = 0
    token: str | None = None
    expired: bool = False
    """Its lease has run out and nobody has noticed yet."""
    cancel_asked: bool = False
    events: list[Event] = field(default_factory=lambda: [Queued()])
    rows: dict[str, str] = field(default_factory=dict)
    """Provider calls by id: intended, lost or what they were settled as."""

    @property
    def over(self) -> bool:
        return self.state in TERMINAL_STATES

    @property
    def suspect(self) -> bool:
        return self.crashes >= MAX_ATTEMPTS - 1

    def claim(self, token: str) -> Attempt:
        self.state, self.token, self.expired = TurnState.RUNNING, token, False
        self.fence += 1
        self.attempts += 1
        again: list[Event] = [Reset(self.attempts)] if self.fence > 1 else []
        self.events += [*again, Started(self.attempts)]
        attempt = Attempt(self, self.fence, token)
        self.rows.setdefault(attempt.call_id(1), "intended")
        return attempt

    def settle(self, calls: dict[str, str]) -> None:
        """An intended or lost row becomes what is said of it; any other stays as it is."""
        for call_id, outcome in calls.items():
            if self.rows.get(call_id, "intended") in ("intended", "lost"):
                self.rows[call_id] = outcome

    def close_calls(self) -> None:
        """No call stays open: one of the present claim was never made, any other is lost."""
        for call_id, outcome in list(self.rows.items()):
            if outcome == "intended" and call_id.split(".")[1] == self.token:
                del self.rows[call_id]
            elif outcome == "intended":
                self.rows[call_id] = "lost"

    def release(self) -> None:
        """Back to the head of its line."""
        self.state, self.token, self.expired = TurnState.QUEUED, None, False

    def hand_back(self) -> None:
        self.attempts -= 1
        self.close_calls()
        self.release()

    def crash(self) -> None:
        """Its worker died, and is given another one whatever it is suspected of."""
        self.crashes += 1
        self.token = None
        self.close_calls()
        self.release()

    def die(self, last: list[Event]) -> ModelTurn | None:
        """The process died that it had to itself; returns the conversation's next turn."""
        self.crashes += 1
        self.token = None
        return self.end(TurnState.FAILED, last)

    def end(self, state: TurnState, events: list[Event], answer: str | None = None) -> ModelTurn | None:
        """Commit; returns the conversation's next turn when this one was at its head."""
        self.state, self.cancel_asked, self.expired = state, False, False
        self.events += events
        self.close_calls()
        if answer is not None:
            self.conversation.remember([self.message, answer])
        return self.conversation.leave(self)


@dataclass(eq=False)
class ModelConversation:
    name: str
    line: list[ModelTurn] = field(default_factory=list)
    """The active turn first, then those that wait."""
    memory: list[str] = field(default_factory=list)
    versions: dict[int, list[str]] = field(default_factory=lambda: {0: []})
    """What memory was at each version that is kept."""
    went_back: dict[int, int] = field(default_factory=dict)
    """Versions that are checkouts, and of which."""

    @property
    def head(self) -> ModelTurn | None:
        return self.line[0] if self.line else None

    @property
    def version(self) -> int:
        return max(self.versions)

    @property
    def baseline(self) -> int:
        return min(self.versions)

    def remember(self, messages: list[str]) -> None:
        self.memory = [*self.memory, *messages]
        self.versions[self.version + 1] = self.memory

    def checkout(self, version: int) -> None:
        self.memory = self.versions[version]
        self.went_back[self.version + 1] = version
        self.versions[self.version + 1] = self.memory

    def needed(self, version: int) -> bool:
        """Whether something newer than `version` goes back below it."""
        return any(made > version > of for made, of in self.went_back.items())

    def compact(self, version: int) -> None:
        self.versions = {number: was for number, was in self.versions.items() if number >= version}
        self.went_back = {made: of for made, of in self.went_back.items() if made > version}

    def leave(self, turn: ModelTurn) -> ModelTurn | None:
        was_head = self.head is turn
        self.line.remove(turn)
        return self.head if was_head else None
