"""The key that makes a tool's side effect happen once, for tools that ask for it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

running: Final[ContextVar[str]] = ContextVar("aiforge_call_key")


def current_call_key() -> str:
    """The key of the tool call that this code runs in; a tool's thread knows it, too.

    It is the same when a paused or interrupted turn goes on and its call is made once more, and no
    other call has it. Raises LookupError outside of a tool call.
    """
    try:
        return running.get()
    except LookupError:
        raise LookupError("there is no tool call around this code") from None
