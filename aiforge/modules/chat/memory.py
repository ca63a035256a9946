"""What a conversation remembers, and how much of it the model sees.

Messages are in OpenAI's form and never hold a system prompt. A window always begins with a user
message, so that no answer stands without its question and no tool result without its call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from aiforge.modules.chat.prompts import SUMMARIZE_MEMORY_PROMPT

MODES: Final = ("buffer", "summary", "none")

MessageT = TypeVar("MessageT", bound=Mapping[str, Any])


def trim(messages: Sequence[MessageT], k: int) -> list[MessageT]:
    """The last `k` messages at most, beginning with a user message."""
    start = max(len(messages) - k, 0)
    while start < len(messages) and messages[start]["role"] != "user":
        start += 1
    return list(messages[start:])


def recent_from(messages: Sequence[Mapping[str, Any]], k: int) -> int:
    """Where the turns begin that hold the last `k` messages; a summary covers what stands before."""
    start = max(len(messages) - k, 0)
    while start > 0 and messages[start]["role"] != "user":
        start -= 1
    return start


class Memory:
    """The messages of one conversation under one of the three modes."""

    def __init__(self, conversation_id: str, mode: str, k: int) -> None:
        self.conversation_id = conversation_id
        self.summary: str | None = None
        self._mode = mode
        self._k = k
        self._messages: list[dict[str, Any]] = []

    def window(self) -> list[dict[str, Any]]:
        """The messages that the next request begins with."""
        return list(self._messages)

    def add(self, turn: Sequence[dict[str, Any]]) -> None:
        """Remember the messages of a whole turn."""
        if self._mode == "none":
            return
        self._messages.extend(turn)
        if self._mode == "buffer":
            self._messages = trim(self._messages, self._k)

    def to_summarize(self) -> list[dict[str, Any]]:
        """The messages that a summary should take the place of; empty while there are too few."""
        if self._mode != "summary" or len(self._messages) <= 2 * self._k:
            return []
        return self._messages[: recent_from(self._messages, self._k)]

    def replace(self, summarized: int, summary: str) -> None:
        """Let `summary` stand for the first `summarized` messages and the summary before it."""
        self._messages = self._messages[summarized:]
        self.summary = summary


def summary_request(messages: Sequence[Mapping[str, Any]], earlier: str | None) -> list[dict[str, Any]]:
    """What the model is asked when `messages`, and an earlier summary, are to become one summary."""
    parts = [f"<earlier_summary>\n{earlier}\n</earlier_summary>"] if earlier else []
    parts.extend(_quoted(message) for message in messages)
    return [
        {"role": "system", "content": SUMMARIZE_MEMORY_PROMPT},
        {"role": "user", "content": "<conversation>\n" + "\n".join(parts) + "\n</conversation>"},
    ]


def _quoted(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else msgspec.json.encode(content).decode() if content else ""
    calls = "".join(
        f"\n[asks for {call['function']['name']} {call['function']['arguments']}]"
        for call in message.get("tool_calls") or ()
    )
    return f"{message['role']}: {text}{calls}"
