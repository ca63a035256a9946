"""What is stored and handed over, and the one place where the states of a turn are named."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

import msgspec

from aiforge.core.types import ProviderCall, Usage

TURN_VERSION: Final = 1
CONVERSATION_VERSION: Final = 1
BATCH_VERSION: Final = 1

MAX_BATCH_ITEMS: Final = 50_000
DEFAULT_MEMORY_K: Final = 20


class TurnState(StrEnum):
    """Where a turn is in its life."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    REQUIRES_ACTION = "requires_action"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


TERMINAL_STATES: Final = frozenset(
    {TurnState.COMPLETED, TurnState.FAILED, TurnState.CANCELLED, TurnState.EXPIRED}
)


class BatchState(StrEnum):
    """OpenAI's names for where a batch is."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


class Lane(StrEnum):
    """A class of work with its own queue; listed in the order in which workers serve them."""

    CHAT = "chat"
    BATCH = "batch"


OnBusy: TypeAlias = Literal["enqueue", "reject", "interrupt", "rollback"]
"""What becomes of a turn that meets a busy conversation: it waits, is refused, or stops the running turn,
whose partial answer is kept (`interrupt`) or forgotten (`rollback`)."""


Stop: TypeAlias = Literal["cancel", "interrupt", "rollback"]
"""How someone wants a running turn to stop: both of the first keep its partial answer."""


class TurnRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller asks for. None means the conversation's or the service's default."""

    message: str | list[dict[str, Any]]
    system_prompt: str | None = None
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    tools: list[str] | None = None
    metadata: dict[str, str] | None = None
    on_busy: OnBusy | None = None
    run_after: float | None = None
    """Unix seconds; the turn joins its conversation's line then, not before."""


class TurnFailure(msgspec.Struct, frozen=True):
    """Why a turn has no answer."""

    code: str
    message: str
    retryable: bool = False


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a paused turn asks a human: to approve a tool call, or for a text."""

    question_id: str
    kind: Literal["approval", "question"]
    text: str
    call_id: str
    tool: str | None = None
    input: dict[str, Any] | None = None


class Paused(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn has so far when it waits for a human, or when its worker died between two rounds."""

    messages: list[dict[str, Any]]
    question: Question | None = None
    calls: list[ProviderCall] = []
    """The provider calls that it has made."""
    begun: list[str] = []
    """Ids of the tool calls that were begun."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn as callers see it. Times are Unix seconds, `cost` is USD or None where a price is unknown."""

    turn_id: str
    conversation_id: str
    state: TurnState
    answer: str | None = None
    error: TurnFailure | None = None
    usage: Usage | None = None
    cost: Decimal | None = None
    attempts: int = 0
    model: str | None = None
    metadata: dict[str, str] | None = None
    created_at: float
    finished_at: float | None = None
    run_after: float | None = None
    """When a scheduled turn joins its conversation's line."""
    question: Question | None = None
    """What a turn in `requires_action` waits for."""
    replayed: bool = False

    @property
    def finished(self) -> bool:
        return self.state in TERMINAL_STATES


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as callers see it; `messages` is how many are stored."""

    conversation_id: str
    created_at: float
    messages: int = 0
    system_prompt: str | None = None
    model: str | None = None
    memory_k: int = DEFAULT_MEMORY_K
    metadata: dict[str, str] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    tools: list[str] | None = None
    on_busy: OnBusy = "enqueue"
    ttl: int | None = None
    """Seconds; None where it lives for ever."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Who has a conversation's attention now, and who waits for it, in order. Turn ids."""

    active: str | None
    waiting: list[str]


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of an erased conversation. Of what its calls cost, the totals stay."""

    conversation_id: str
    messages: int
    turns: int
    stopped: int
    """How many of the turns were running."""


class ConversationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for every turn of a conversation that does not say otherwise."""

    system_prompt: str | None = None
    model: str | None = None
    memory_k: int = DEFAULT_MEMORY_K
    metadata: dict[str, str] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    tools: list[str] | None = None
    on_busy: OnBusy = "enqueue"
    ttl: int | None = None
    """Seconds that the conversation lives after its last turn's end; None is the service's default."""


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation's memory, in OpenAI's form, with the turn that wrote it."""

    role: Literal["user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    turn_id: str = ""
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    stopped: bool = False
    """The answer is partial: its turn was cancelled."""


class BatchItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One independent question of a batch. `id` is the caller's own and comes back with the answer."""

    message: str | list[dict[str, Any]]
    id: str | None = None
    system_prompt: str | None = None
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    tools: list[str] | None = None
    metadata: dict[str, str] | None = None


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of items and what holds for every item that does not say otherwise."""

    items: list[BatchItem]
    system_prompt: str | None = None
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    tools: list[str] | None = None
    metadata: dict[str, str] | None = None


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one item, `index` counting from 0 in input order."""

    index: int
    id: str | None
    status: Literal["ok", "error"]
    answer: str | None = None
    error: TurnFailure | None = None
    model: str | None = None
    usage: Usage | None = None
    cost: Decimal | None = None
    latency_ms: float | None = None
    attempts: int = 1


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as callers see it. `cost` sums the priced calls, `unpriced_calls` counts the others."""

    batch_id: str
    state: BatchState
    total: int
    completed: int = 0
    failed: int = 0
    usage: Usage = Usage()
    cost: Decimal = Decimal(0)
    unpriced_calls: int = 0
    metadata: dict[str, str] | None = None
    model: str | None = None
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None
    cancelled_at: float | None = None
