"""What a request may say beside its message; what is left out is the service's default."""

from __future__ import annotations

from typing import TypedDict


class Options(TypedDict, total=False):
    """Of a turn, or of all items of a batch that do not say otherwise."""

    system_prompt: str | None
    model: str | None
    temperature: float | None
    max_tokens: int | None
    tools: list[str] | None
    metadata: dict[str, str] | None


class ConversationOptions(TypedDict, total=False):
    """Of every turn of a conversation that does not say otherwise."""

    system_prompt: str | None
    model: str | None
    memory_k: int | None
    metadata: dict[str, str] | None
