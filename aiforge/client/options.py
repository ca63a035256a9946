"""What a request may say beside its message; what is left out is the service's default."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

OnBusy: TypeAlias = Literal["enqueue", "reject", "interrupt", "rollback"]
"""What becomes of a turn that meets a busy conversation."""
Group: TypeAlias = Literal["day", "provider", "model", "purpose"]
State: TypeAlias = Literal["scheduled", "queued", "running", "requires_action"]
"""Where a turn that has not ended can be."""


class Options(TypedDict, total=False):
    """Of a turn, or of all items of a batch that do not say otherwise."""

    system_prompt: str | None
    model: str | None
    temperature: float | None
    max_tokens: int | None
    tools: list[str] | None
    metadata: dict[str, str] | None


class TurnOptions(Options, total=False):
    """Of a turn alone."""

    on_busy: OnBusy | None
    run_after: float | None
    """Unix seconds; the turn joins its conversation's line then."""


class ConversationOptions(TypedDict, total=False):
    """Of every turn of a conversation that does not say otherwise."""

    system_prompt: str | None
    model: str | None
    memory_k: int | None
    metadata: dict[str, str] | None
    temperature: float | None
    max_tokens: int | None
    tools: list[str] | None
    on_busy: OnBusy | None
    ttl: int | None
    """Seconds that it lives after its last turn's end."""
