"""What the service answers, typed. Unknown fields are skipped, so an older client reads a newer service."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final, Literal

import msgspec

from aiforge.core.types import Usage

TERMINAL_STATES: Final = frozenset({"completed", "failed", "cancelled", "expired"})
"""States of a turn that never change again."""
ENDED_STATUSES: Final = frozenset({"completed", "failed", "cancelled", "expired"})
"""OpenAI's names for a batch that never changes again."""

Content = str | list[dict[str, Any]]
"""A message: text, or OpenAI's content parts."""


class Failure(msgspec.Struct, frozen=True):
    """Why a turn or an item has no answer; `retryable` says whether asking again can help."""

    code: str
    message: str
    retryable: bool = False


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn asks a human: to approve the call of `tool` with `input`, or for a text."""

    question_id: str
    kind: str
    text: str
    tool: str | None = None
    input: dict[str, Any] | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn. Times are Unix seconds; `cost` is USD, None where a price is unknown."""

    turn_id: str
    conversation_id: str
    state: str = "queued"
    answer: str | None = None
    error: Failure | None = None
    usage: Usage | None = None
    cost: Decimal | None = None
    estimated_cost: Decimal | None = None
    """The part of `cost` that no provider reported."""
    attempts: int = 0
    model: str | None = None
    metadata: dict[str, str] | None = None
    created_at: float | None = None
    finished_at: float | None = None
    run_after: float | None = None
    """When a scheduled turn joins its conversation's line."""
    question: Question | None = None
    """What a turn in `requires_action` waits for; `resume` answers it."""

    @property
    def finished(self) -> bool:
        return self.state in TERMINAL_STATES


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation; `messages` is how many it holds."""

    conversation_id: str
    created_at: float | None = None
    messages: int = 0
    version: int = 0
    """The latest; each turn that is committed makes one, each checkout too."""
    baseline: int = 0
    """The oldest version that is kept; 0 is the empty conversation."""
    revision: int = 0
    """How often its settings were changed."""
    busy: bool = False
    """A turn of it runs, or waits for a worker or a human."""
    system_prompt: str | None = None
    model: str | None = None
    memory: str = "buffer"
    memory_k: int | None = None
    metadata: dict[str, str] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    tools: list[str] | None = None
    on_busy: str = "enqueue"
    ttl: int | None = None
    """Seconds that it lives after its last turn's end; None is for ever."""
    last_turn_at: float | None = None
    """Known where conversations are listed."""


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a conversation: what made it, when, and how many messages the conversation has at it."""

    version: int
    kind: str
    """`turn`, `checkout` or `snapshot`, which stands for all up to it or what the conversation came with."""
    at: float
    messages: int
    turn_id: str | None = None
    to: int | None = None
    """The version that a checkout went back to."""


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of a conversation's turns: the one that has its attention, and those that wait, in order."""

    active: str | None = None
    waiting: list[str] = []


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """The receipt of an erased conversation; `stopped` counts the turns that were running."""

    conversation_id: str
    messages: int
    turns: int
    stopped: int
    schedules: int = 0
    """How many schedules posted to it."""
    items: int = 0
    """How many items of batches were of it."""
    files: list[str] = []
    """Files of batches with lines of it, which stay until they are deleted."""


class Fire(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a schedule's tick (Unix seconds): a turn, a batch, or why it was refused."""

    tick: int
    turn_id: str | None = None
    batch_id: str | None = None
    error: Failure | None = None


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule. Times are Unix seconds; where schedules are listed, `turn` and `batch` are left out."""

    schedule_id: str
    cron: str
    timezone: str = "UTC"
    conversation_id: str | None = None
    kind: str = "turn"
    turn: dict[str, Any] | None = None
    batch: dict[str, Any] | None = None
    catch_up: str = "last"
    starts_at: float | None = None
    ends_at: float | None = None
    paused: bool = False
    metadata: dict[str, str] | None = None
    created_at: float | None = None
    next_at: int | None = None
    """None while it is paused, and when no tick is left."""
    last_fire: Fire | None = None


class UsageRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The provider calls of one group. `cost` is USD of the calls whose price is known."""

    day: str | None = None
    provider: str | None = None
    model: str | None = None
    purpose: str | None = None
    calls: int
    failed_calls: int
    lost_calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost: Decimal
    estimated_cost: Decimal = Decimal(0)
    """The part of `cost` that no provider reported."""
    unpriced_calls: int


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Rows, sorted by what they are grouped by."""

    data: list[UsageRow]
    total_cost: Decimal


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A provider call: whose it is, and what became of it. `cost` is USD, None while it is not known."""

    call_id: str
    turn_id: str | None = None
    batch_id: str | None = None
    index: int | None = None
    """Of the batch's item."""
    attempt: int | None = None
    at: float | None = None
    """When it was entered, in Unix seconds."""
    purpose: str
    provider: str
    model: str
    outcome: str
    """`intended` while it is under way, then `ok`, `error`, `aborted` or, when its worker died, `lost`."""
    usage: Usage | None = None
    cost: Decimal | None = None
    price_list: str | None = None
    error_code: str | None = None
    latency_ms: float | None = None
    first_token_ms: float | None = None


class ModelHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How one model fares with all workers. Times are Unix seconds; a limit that is None does not exist."""

    name: str
    circuit: str
    """`closed`, `open` after too many failures, `half_open` while one call finds out whether it is over."""
    open_until: float | None = None
    cooling_until: float | None = None
    failures: int = 0
    """Failed calls in a row."""
    pace: float = 1.0
    """The share of its usual pace that the model is asked at."""
    chats_in_flight: int = 0
    items_in_flight: int = 0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a conversation in OpenAI's form, with the turn that wrote it."""

    role: str
    content: Content | None = None
    turn_id: str = ""
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    stopped: bool = False
    """The answer is partial: its turn was cancelled."""


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that one version of a conversation lacks and has, compared with another."""

    removed: list[Message]
    added: list[Message]


class Export(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole conversation as one document: `settings` by name, messages in order."""

    version: int
    conversation_id: str
    created_at: float
    settings: dict[str, Any]
    messages: list[dict[str, Any]]
    summary: dict[str, Any] | None = None
    """What stands for the first so many messages where the conversation remembers by summary."""


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question of a batch; `id` is the caller's own and comes back with the answer."""

    message: Content
    id: str | None = None
    conversation: str | None = None
    """The conversation that this is a turn of; items of one are answered in order."""
    system_prompt: str | None = None
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    tools: list[str] | None = None
    metadata: dict[str, str] | None = None


class Counts(msgspec.Struct, frozen=True):
    """How far a batch is; `completed` and `failed` items are done."""

    total: int = 0
    completed: int = 0
    failed: int = 0

    @property
    def done(self) -> int:
        return self.completed + self.failed


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a line of a file; lines count from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class LineErrors(msgspec.Struct, frozen=True):
    """Up to 100 of them."""

    data: list[LineError] = []


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch in OpenAI's form. `cost` is USD over all priced calls, `unpriced_calls` counts the others."""

    id: str
    status: str
    request_counts: Counts = Counts()
    usage: Usage = Usage()
    cost: Decimal = Decimal(0)
    estimated_cost: Decimal = Decimal(0)
    """The part of `cost` that no provider reported."""
    max_cost: Decimal | None = None
    """USD; what would cost more is not asked any more."""
    unpriced_calls: int = 0
    model: str | None = None
    metadata: dict[str, str] | None = None
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    """Files of a batch that is one; None until they can be read, or when there is nothing in them."""
    errors: LineErrors | None = None
    """Why a batch that is a file has failed."""
    invalid_lines: int = 0
    saved_calls: int = 0
    """Items that were answered by the answer to another one, of this batch or of an earlier one."""
    cache_ttl: int | None = None
    """Seconds that answers are kept for later batches."""
    expires_at: float | None = None
    paused_at: float | None = None
    waits_until: float | None = None
    """Until then no item begins, because a budget has no room."""
    created_at: float | None = None
    in_progress_at: float | None = None
    completed_at: float | None = None
    cancelled_at: float | None = None

    @property
    def ended(self) -> bool:
        return self.status in ENDED_STATUSES


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one item of a batch; `index` counts from 0 in input order."""

    index: int
    id: str | None = None
    status: Literal["ok", "error"]
    answer: str | None = None
    error: Failure | None = None
    model: str | None = None
    usage: Usage | None = None
    cost: Decimal | None = None
    latency_ms: float | None = None
    attempts: int = 1
    response: dict[str, Any] | None = None
    """Of a line of a file: `status_code`, `request_id` and `body`, as the provider answered it."""
    deduplicated: int | None = None
    """The index of the item whose answer this is, too."""
    cached: bool = False
    """The answer is one that an earlier batch was given; it cost nothing."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the service. Times are Unix seconds; one without `expires_at` stays."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: float | None = None
    expires_at: float | None = None
