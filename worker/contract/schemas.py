"""What is stored and handed over, and the one place where the states of a turn are named."""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

import msgspec

from aiforge.core.types import ProviderCall, Usage
from worker.contract.batch.line_schemas import Endpoint, LineErrors, LineResponse, OutputExpiry

TURN_VERSION: Final = 1
CONVERSATION_VERSION: Final = 1
BATCH_VERSION: Final = 4
TURNS_BATCH_VERSION: Final = 3
"""Of items that continue conversations, and of no file."""
INDEPENDENT_BATCH_VERSION: Final = 2
"""Of a batch without conversations or answers of earlier ones, which an older worker can run, too."""

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


class Caller(msgspec.Struct, frozen=True):
    """Who calls: the tenant whose data is read and stored, and the name of the API key whose budgets hold."""

    tenant: str = "default"
    api_key: str | None = None


class BatchState(StrEnum):
    """OpenAI's names for where a batch is."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


BATCH_OVER: Final = frozenset(
    {BatchState.FAILED, BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED}
)
"""Nothing more happens to the batch by itself."""


class Lane(StrEnum):
    """A class of work with its own queue; listed in the order in which workers serve them."""

    CHAT = "chat"
    BATCH = "batch"


OnBusy: TypeAlias = Literal["enqueue", "reject", "interrupt", "rollback"]
"""What becomes of a turn that meets a busy conversation: it waits, is refused, or stops the running turn,
whose partial answer is kept (`interrupt`) or forgotten (`rollback`)."""


MemoryMode: TypeAlias = Literal["buffer", "summary", "none"]
"""What a turn is shown of those before it: the last messages, a summary of the others too, or nothing."""

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
    """A turn as callers see it. Times are Unix seconds, `cost` is USD or None where a price is unknown.

    `usage` and `cost` are those of all its provider calls, also of attempts that died.
    """

    turn_id: str
    conversation_id: str
    state: TurnState
    answer: str | None = None
    error: TurnFailure | None = None
    usage: Usage | None = None
    cost: Decimal | None = None
    estimated_cost: Decimal | None = None
    """The part of `cost` that no provider reported: answers that were stopped, attempts that died."""
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
    version: int = 0
    """The latest; each turn that is committed makes one, and so does going back to an older one."""
    baseline: int = 0
    """The oldest version that is kept."""
    revision: int = 0
    """How often its settings were changed."""
    busy: bool = False
    """A turn of it runs, waits for a worker or for a human."""
    system_prompt: str | None = None
    model: str | None = None
    memory: MemoryMode = "buffer"
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
    schedules: int = 0
    """How many schedules posted to it."""
    items: int = 0
    """How many items of batches, and of those that schedules post, were of it; their rows say
    `conversation_erased`."""
    files: list[str] = []
    """Files of batches with lines of it, which stay until they are deleted."""


class ConversationSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for every turn of a conversation that does not say otherwise."""

    system_prompt: str | None = None
    model: str | None = None
    memory: MemoryMode = "buffer"
    memory_k: int = DEFAULT_MEMORY_K
    metadata: dict[str, str] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    tools: list[str] | None = None
    on_busy: OnBusy = "enqueue"
    ttl: int | None = None
    """Seconds that the conversation lives after its last turn's end; None is the service's default."""


class ConversationChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that are to change: None is the default again; of the metadata, single keys change, or go."""

    system_prompt: str | msgspec.UnsetType | None = msgspec.UNSET
    model: str | msgspec.UnsetType | None = msgspec.UNSET
    memory: MemoryMode | msgspec.UnsetType | None = msgspec.UNSET
    memory_k: int | msgspec.UnsetType | None = msgspec.UNSET
    metadata: dict[str, str | None] | msgspec.UnsetType | None = msgspec.UNSET
    temperature: float | msgspec.UnsetType | None = msgspec.UNSET
    max_tokens: int | msgspec.UnsetType | None = msgspec.UNSET
    tools: list[str] | msgspec.UnsetType | None = msgspec.UNSET
    on_busy: OnBusy | msgspec.UnsetType | None = msgspec.UNSET
    ttl: int | msgspec.UnsetType | None = msgspec.UNSET

    def applied(self, settings: ConversationSettings) -> ConversationSettings:
        """These settings, changed."""
        given = {name: getattr(self, name) for name in ConversationChanges.__struct_fields__}
        defaults = ConversationSettings()
        changed = {
            name: getattr(defaults, name) if value is None else value
            for name, value in given.items()
            if value is not msgspec.UNSET
        }
        if changed.get("metadata"):
            noted = {**(settings.metadata or {}), **changed["metadata"]}
            changed["metadata"] = {key: note for key, note in noted.items() if note is not None} or None
        return msgspec.structs.replace(settings, **changed)


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a conversation: what made it, when (Unix seconds), how many messages memory has at it."""

    version: int
    kind: Literal["turn", "checkout", "snapshot"]
    """A snapshot stands for all versions up to it, or for what a conversation came with."""
    at: float
    messages: int
    turn_id: str | None = None
    to: int | None = None
    """The version that a checkout went back to."""


class Summary(msgspec.Struct, frozen=True):
    """What stands for the first so many messages where a conversation remembers by summary."""

    messages: int
    text: str


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


class Diff(msgspec.Struct, frozen=True):
    """What has to be taken from one version of a conversation, and then added, to get another."""

    removed: list[StoredMessage]
    added: list[StoredMessage]


class BatchItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One question of a batch. `id` is the caller's own and comes back with the answer.

    It is independent of all others, unless it names a `conversation`: then it is a turn of that one, which
    begins when the item before it in the same conversation has its row.
    """

    message: str | list[dict[str, Any]]
    id: str | None = None
    conversation: str | None = None
    system_prompt: str | None = None
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    tools: list[str] | None = None
    metadata: dict[str, str] | None = None


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of items and what holds for every item that does not say otherwise; or a file of requests."""

    items: list[BatchItem] = []
    input_file_id: str | None = None
    endpoint: Endpoint | None = None
    completion_window: str | None = None
    """How long the batch may take, such as `24h`; None is for ever."""
    output_expires_after: OutputExpiry | None = None
    dedupe: bool = False
    """What is asked twice is answered once, whatever the temperature."""
    max_cost: Decimal | None = None
    """USD that the batch's provider calls may cost together; an item that has no room left fails."""
    cache_ttl: int | msgspec.UnsetType | None = msgspec.UNSET
    """Seconds: what an earlier batch was answered no longer ago is not asked again, and what is answered now
    is kept for so long. Left out where it is stored, so that an older worker can read all other batches."""
    system_prompt: str | None = None
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    tools: list[str] | None = None
    metadata: dict[str, str] | None = None


class BatchRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one item, `index` counting from 0 in input order. A line of a file has a `response`."""

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
    response: LineResponse | None = None
    deduplicated: int | None = None
    """The index of the item that asked the same and was answered for both."""
    cached: bool = False
    """The answer is one that an earlier batch was given."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as callers see it. `cost` sums the priced calls, `unpriced_calls` counts the others."""

    batch_id: str
    state: BatchState
    total: int
    completed: int = 0
    failed: int = 0
    usage: Usage = Usage()
    cost: Decimal = Decimal(0)
    estimated_cost: Decimal = Decimal(0)
    """The part of `cost` that no provider reported."""
    unpriced_calls: int = 0
    metadata: dict[str, str] | None = None
    model: str | None = None
    created_at: float
    started_at: float | None = None
    finalizing_at: float | None = None
    finished_at: float | None = None
    cancelled_at: float | None = None
    paused_at: float | None = None
    waits_until: float | None = None
    """Until then no item begins, because a budget has no room."""
    expires_at: float | None = None
    completion_window: str | None = None
    endpoint: str | None = None
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: LineErrors | None = None
    """Why a batch that came as a file has failed."""
    max_cost: Decimal | None = None
    saved_calls: int = 0
    """How many items were answered by the answer to another one, of this batch or of an earlier one."""
    cache_ttl: int | None = None
    replayed: bool = False
