"""What a request may say beside its message; what is left out is the service's default."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict

OnBusy: TypeAlias = Literal["enqueue", "reject", "interrupt", "rollback"]
"""What becomes of a turn that meets a busy conversation."""
Memory: TypeAlias = Literal["buffer", "summary", "none"]
"""What a turn is shown of those before it."""
CatchUp: TypeAlias = Literal["skip", "last", "all"]
"""What becomes of a schedule's missed ticks: left out, made up for by one fire, or all fired."""
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


class SpendingOptions(TypedDict, total=False):
    """Of any batch: what it may cost and what it need not ask."""

    dedupe: bool | None
    """What is asked twice is answered once, whatever the temperature."""
    max_cost: str | None
    """USD as a decimal string; what would cost more is not asked any more."""
    cache_ttl: int | None
    """Seconds: what an earlier batch was answered no longer ago is not asked again, and answers are kept so
    long."""


class BatchOptions(Options, SpendingOptions, total=False):
    """Of a batch of items."""

    completion_window: str | None
    """How long it may take, such as `24h`."""


class FileOptions(SpendingOptions, total=False):
    """Of a batch that is a file of requests."""

    metadata: dict[str, str] | None
    """With `on_invalid` `skip`, lines that are wrong are left out."""


class ScheduledOptions(Options, total=False):
    """Of the turn that a schedule posts."""

    on_busy: OnBusy | None


class TurnOptions(ScheduledOptions, total=False):
    """Of a turn that is posted now."""

    run_after: float | None
    """Unix seconds; the turn joins its conversation's line then."""


class ScheduleOptions(TypedDict, total=False):
    """Of a schedule; times are Unix seconds."""

    timezone: str | None
    conversation_id: str | None
    """Where its turns go; without it each begins a conversation of its own."""
    catch_up: CatchUp | None
    starts_at: float | None
    ends_at: float | None
    paused: bool | None
    metadata: dict[str, str] | None


class ConversationOptions(TypedDict, total=False):
    """Of every turn of a conversation that does not say otherwise."""

    system_prompt: str | None
    model: str | None
    memory: Memory | None
    memory_k: int | None
    metadata: dict[str, str] | None
    temperature: float | None
    max_tokens: int | None
    tools: list[str] | None
    on_busy: OnBusy | None
    ttl: int | None
    """Seconds that it lives after its last turn's end."""


class ConversationChanges(TypedDict, total=False):
    """Settings of a conversation that are to change; None is the service's default again."""

    system_prompt: str | None
    model: str | None
    memory: Memory | None
    memory_k: int | None
    metadata: dict[str, str | None] | None
    """Keys that are to change; one with None goes, all others stay."""
    temperature: float | None
    max_tokens: int | None
    tools: list[str] | None
    on_busy: OnBusy | None
    ttl: int | None
