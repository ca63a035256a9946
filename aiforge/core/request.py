"""What hooks and tools may know of the turn that they work for, and the actions that they record in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from aiforge.core.types import ConfigError


class Action(msgspec.Struct, frozen=True):
    """Something to be done outside, once its turn is committed.

    `id` never repeats, so that a receiver can tell a second delivery after a crash.
    """

    id: str
    name: str
    payload: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One turn, as its caller asked for it. `metadata` is what the caller gave along."""

    message: str
    conversation_id: str
    turn_id: str
    metadata: Mapping[str, str]
    actions: list[Action] = field(default_factory=list)
    """What was recorded so far; it is thrown away when the turn fails."""
    _numbers: Iterator[int] = field(default_factory=itertools.count, repr=False)
    dispatches: bool = True
    """Whether who runs the turn hands actions on."""

    def act(self, name: str, payload: Mapping[str, Any] | None = None) -> Action:
        """Record an action, to be dispatched once after the turn's commit.

        Raises TypeError when the payload is not made of JSON's types, ConfigError where nobody would
        hand the action on.
        """
        if not self.dispatches:
            raise ConfigError(f"action {name!r} would be lost: the service does not hand actions on yet")
        plain = msgspec.json.decode(msgspec.json.encode(dict(payload or {})))
        action = Action(f"{self.turn_id}-{next(self._numbers)}", name, plain)
        self.actions.append(action)
        return action


_current: Final[ContextVar[ChatRequest]] = ContextVar("aiforge_request")


def current_request() -> ChatRequest:
    """The turn that this code runs in; a tool's thread knows it, too. Raises LookupError outside of one."""
    try:
        return _current.get()
    except LookupError:
        raise LookupError("there is no turn of a ChatAgent around this code") from None


@contextmanager
def serving(request: ChatRequest) -> Iterator[None]:
    """Code in this block, and the tasks and threads that it starts, sees `request`."""
    token = _current.set(request)
    try:
        yield
    finally:
        _current.reset(token)
