"""A turn in the terminal: its text as it comes, on stdout; what else happens, on stderr."""

from __future__ import annotations

import time
from collections.abc import Iterable

from aiforge.cli.output import data, duration, note
from aiforge.client import Turn
from aiforge.core.events import Event, Gap, Message, Preamble, Reset, Token, ToolCall, ToolResult


class Transcript:
    """Writes events; what stands last on stdout is the stored answer. A quiet one only follows them."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.last = 0
        """The number of the last event."""
        self._quiet = quiet
        self._started = time.monotonic()
        self._round = ""
        self.first_token_seconds: float | None = None

    def follow(self, events: Iterable[tuple[int, Event]]) -> None:
        """Until the turn's last event or question; the line is ended whatever happens."""
        try:
            for self.last, event in events:
                if not self._quiet:
                    self._show(event)
        finally:
            self._end_line()

    def _show(self, event: Event) -> None:
        match event:
            case Token(text=text):
                if self.first_token_seconds is None:
                    self.first_token_seconds = time.monotonic() - self._started
                self._round += text
                data(text, end="")
            case Preamble():
                self._end_line()
            case ToolCall(name=name):
                self._end_line()
                note(f"→ {name}")
            case ToolResult(name=name, ok=ok):
                note(f"← {name}" if ok else f"← {name} failed")
            case Reset(attempt=attempt):
                self._end_line()
                note(f"the answer starts over (attempt {attempt})", style="yellow")
            case Gap(first=first, last=last):
                note(f"events {first} to {last} are no longer kept", style="yellow")
                self._round += "…"
            case Message(text=text):
                if text != self._round:
                    self._end_line()
                    data(text, end="")
                    self._round = text
            case _:
                pass

    def _end_line(self) -> None:
        if self._round and not self._round.endswith("\n"):
            data("")
        self._round = ""


def summary(turn: Turn) -> str:
    """One line on what a finished turn took."""
    parts = [f"conversation {turn.conversation_id}"]
    if turn.usage is not None:
        parts.append(f"{turn.usage.input_tokens} + {turn.usage.output_tokens} tokens")
    parts.append("price unknown" if turn.cost is None else f"${turn.cost:f}")
    if turn.finished_at is not None and turn.created_at is not None:
        parts.append(duration(turn.finished_at - turn.created_at))
    return " · ".join(parts)
