"""How many tokens a conversation may use, how many it uses, and how well that is estimated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aiforge.core.settings import AIForgeSettings
from aiforge.core.tokens import count_messages
from aiforge.core.types import Usage
from aiforge.core.windows import ContextWindow, WindowFinder

SUMMARIZE_AT: Final = 0.7
"""The part of the window past which old messages are summarised."""
MARGIN: Final = 0.1
"""The part of the window that a request leaves free, because its tokens are estimated."""
HELD_BY_ANY: Final = 1_000
"""Tokens of a request that every window holds, so that nobody has to be asked for it."""


class Budget:
    """The tokens of one model's conversations. Only `resolve` and `look` make requests, the first time."""

    def __init__(self, finder: WindowFinder, settings: AIForgeSettings) -> None:
        self._finder = finder
        self._fallback = settings.TOKENS_BEFORE_SUMMARIZE
        self._estimated = 0
        self._reported = 0
        self.keep = settings.MESSAGES_TO_KEEP
        """Messages that a summary leaves as they are, None for as many as the memory holds."""
        self.trimmed = 0
        """Messages that were left out of requests, because those would not have fitted."""

    async def resolve(self) -> ContextWindow:
        """Ask for the window, unless that was done before."""
        return await self._finder.find()

    async def look(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None) -> None:
        """Ask for the window where a request may not fit, and nobody here knows it."""
        if self.window.tokens is None and count_messages(messages, tools) > HELD_BY_ANY:
            await self.resolve()

    @property
    def window(self) -> ContextWindow:
        """What is known of the window now."""
        return self._finder.known

    @property
    def summarize_at(self) -> int:
        """Tokens of a request, system prompt and tools included, from which a summary is made."""
        tokens = self.window.tokens
        return self._fallback if tokens is None else int(tokens * SUMMARIZE_AT)

    @property
    def summary_room(self) -> int:
        """Tokens that a request for a summary and its answer may have."""
        tokens = self.window.tokens
        return self._fallback if tokens is None else int(tokens * (1 - MARGIN))

    def compare(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, usage: Usage
    ) -> None:
        """Take note of what the provider counted where this counts too."""
        if not usage.estimated and usage.input_tokens:
            self._estimated += count_messages(messages, tools)
            self._reported += usage.input_tokens

    @property
    def estimate_error(self) -> float | None:
        """How far the estimates are off what providers reported: 0.1 is 10 % too many, -0.1 too few.

        Over all answered calls that were compared; None before the first.
        """
        return (self._estimated - self._reported) / self._reported if self._reported else None

    def fit(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Any] | None,
        *,
        current: int,
        max_tokens: int | None,
    ) -> list[dict[str, Any]]:
        """`messages` without as many of their oldest turns as it takes to fit the window.

        The instructions before them and the turn that begins at `current` always stay. `max_tokens`
        are reserved for the answer.
        """
        tokens = self.window.tokens
        if tokens is None:
            return messages
        limit = tokens - max(int(tokens * MARGIN), min(max_tokens or 0, tokens // 2))
        total = count_messages(messages, tools)
        if total <= limit:
            return messages
        first = next((n for n, message in enumerate(messages) if message["role"] != "system"), current)
        start = first
        while start < current and total > limit:
            total -= count_messages(messages[start : start + 1])
            start += 1
            while start < current and messages[start]["role"] != "user":
                total -= count_messages(messages[start : start + 1])
                start += 1
        self.trimmed += start - first
        return messages[:first] + messages[start:]
