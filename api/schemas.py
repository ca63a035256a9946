"""What `/openapi.json` says of bodies, replies and headers.

These models document; requests are decoded into the contract's structs (`api/bodies.py`) and replies
are written by `api/replies.py`. The suite checks that all of them name the same fields.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from worker.contract.schemas import DEFAULT_MEMORY_K, MAX_BATCH_ITEMS, BatchState, TurnState

Parts = list[dict[str, Any]]
Money = str
_USAGE: Final[dict[str, Any]] = {
    "input_tokens": 412,
    "output_tokens": 57,
    "cached_tokens": 0,
    "cache_write_tokens": 0,
    "reasoning_tokens": 0,
    "estimated": False,
}
_TURN: Final[dict[str, Any]] = {
    "turn_id": "171f0a93c2d4e5b6a7f809",
    "conversation_id": "user-42",
    "state": "completed",
    "answer": "Open Settings, choose Security and press Reset password.",
    "error": None,
    "usage": _USAGE,
    "cost": "0.000096",
    "attempts": 1,
    "model": "gpt-4o-mini",
    "metadata": {"channel": "web"},
    "created_at": 1767225600.128,
    "finished_at": 1767225601.934,
}

QUEUED: Final[dict[str, Any]] = {
    **_TURN,
    "state": "queued",
    **dict.fromkeys(("answer", "usage", "cost", "model", "finished_at")),
    "attempts": 0,
}
"""A turn as it looks right after it was posted."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Defaults(_Body):
    system_prompt: str | None = Field(None, description="Instructions that stand before the conversation.")
    model: str | None = Field(None, description="The model's name; the service's own when left out.")
    temperature: float | None = Field(None, ge=0, le=2)
    max_tokens: int | None = Field(None, ge=1, description="The longest answer, in tokens.")
    tools: list[str] | None = Field(None, description="Names of the tools that the model may call.")
    metadata: dict[str, str] | None = Field(
        None, description="The caller's own notes; they come back unchanged."
    )


class TurnBody(_Defaults):
    """One user message and how it is to be answered."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"message": "How do I reset my password?", "metadata": {"channel": "web"}},
                {
                    "message": "And on the phone?",
                    "model": "gpt-4o-mini",
                    "temperature": 0.2,
                    "max_tokens": 300,
                },
            ]
        },
    )

    message: str | Parts = Field(description="Text, or content parts in OpenAI's form.")
    client_message_id: str | None = Field(
        None, description="The same as the header Idempotency-Key: posted twice, the message is taken once."
    )


class ConversationBody(_Body):
    """What holds for every turn of a conversation that does not say otherwise."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"conversation_id": "user-42", "system_prompt": "You answer for the ACME shop."}]
        },
    )

    conversation_id: str | None = Field(
        None, description="1 to 128 of A-Z a-z 0-9 . _ -; issued when left out."
    )
    system_prompt: str | None = None
    model: str | None = None
    memory_k: int = Field(
        DEFAULT_MEMORY_K, ge=1, le=1000, description="How many stored messages a turn is shown."
    )
    metadata: dict[str, str] | None = None


class BatchItem(_Defaults):
    """One independent question."""

    message: str | Parts
    id: str | None = Field(None, description="The caller's own id; it comes back with the answer.")


class BatchBody(_Defaults):
    """Items, and what holds for every item that does not say otherwise."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "items": [
                        {"id": "faq-1", "message": "Where is my order?"},
                        {"id": "faq-2", "message": "Wie kündige ich?", "max_tokens": 200},
                        "An item may be just its message.",
                    ],
                    "model": "gpt-4o-mini",
                    "metadata": {"run": "nightly"},
                }
            ]
        },
    )

    items: list[BatchItem | str] = Field(min_length=1, max_length=MAX_BATCH_ITEMS)


class Usage(BaseModel):
    """Tokens; `estimated` marks numbers that the provider did not report."""

    model_config = ConfigDict(json_schema_extra={"examples": [_USAGE]})

    input_tokens: int
    output_tokens: int
    cached_tokens: int = Field(description="Part of input_tokens.")
    cache_write_tokens: int = Field(description="Part of input_tokens.")
    reasoning_tokens: int = Field(description="Part of output_tokens.")
    estimated: bool


class TurnFailure(BaseModel):
    """Why there is no answer; `retryable` says whether asking again can help."""

    code: str = Field(examples=["provider_timeout"])
    message: str
    retryable: bool


class Turn(BaseModel):
    """A turn. Times are Unix seconds; what is not known yet is null."""

    model_config = ConfigDict(json_schema_extra={"examples": [_TURN]})

    turn_id: str
    conversation_id: str
    state: TurnState
    answer: str | None = Field(description="Present once the turn is completed and stored.")
    error: TurnFailure | None
    usage: Usage | None
    cost: Money | None = Field(description="USD as a decimal string; null where a price is not known.")
    attempts: int = Field(description="How many times a worker has begun it.")
    model: str | None
    metadata: dict[str, str] | None
    created_at: float
    finished_at: float | None


class Conversation(BaseModel):
    """A conversation; `messages` is how many are stored."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "conversation_id": "user-42",
                    "created_at": 1767225600.128,
                    "messages": 4,
                    "system_prompt": None,
                    "model": None,
                    "memory_k": 20,
                    "metadata": None,
                }
            ]
        }
    )

    conversation_id: str
    created_at: float
    messages: int
    system_prompt: str | None
    model: str | None
    memory_k: int
    metadata: dict[str, str] | None


class StoredMessage(BaseModel):
    """One message in OpenAI's form, with the turn that wrote it; fields that do not apply are left out."""

    role: Literal["user", "assistant", "tool"]
    content: str | Parts | None = None
    turn_id: str = ""
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    stopped: bool = Field(False, description="The answer of a cancelled turn, as far as it came.")


class Messages(BaseModel):
    """A page of a conversation's memory, oldest first."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "data": [
                        {"role": "user", "content": "My name is Ada.", "turn_id": "171f0a93c2d4e5b6a7f809"},
                        {"role": "assistant", "content": "Hello Ada!", "turn_id": "171f0a93c2d4e5b6a7f809"},
                    ],
                    "has_more": False,
                }
            ]
        }
    )

    object: Literal["list"]
    data: list[StoredMessage]
    has_more: bool = Field(description="Whether `after` = the number of messages read so far gives more.")


class RequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


class Batch(BaseModel):
    """OpenAI's batch object, with what the batch cost. Times are whole Unix seconds."""

    id: str = Field(examples=["batch_171f0a93c2d4e5b6a7f809"])
    object: Literal["batch"]
    endpoint: str
    errors: None
    input_file_id: Literal["inline"]
    output_file_id: None
    error_file_id: None
    completion_window: str
    status: BatchState
    created_at: int
    in_progress_at: int | None
    expires_at: None
    finalizing_at: None
    completed_at: int | None
    failed_at: None
    expired_at: None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    model: str | None
    metadata: dict[str, str] | None
    usage: dict[str, Any] = Field(description="Sums in OpenAI's form, beside the fields of a turn's usage.")
    cost: Money = Field(description="USD as a decimal string, of the calls whose price is known.")
    unpriced_calls: int = Field(description="Calls that `cost` does not hold because no price is known.")


class BatchRow(BaseModel):
    """The result of one item; `index` counts from 0 in the order of the items."""

    index: int
    id: str | None
    status: Literal["ok", "error"]
    answer: str | None
    error: TurnFailure | None
    model: str | None
    usage: Usage | None
    cost: Money | None
    latency_ms: float | None
    attempts: int


class ErrorDetail(BaseModel):
    message: str
    type: Literal["invalid_request_error", "authentication_error", "permission_error", "server_error"]
    param: str | None = Field(description="The field, parameter or header that is wrong.")
    code: str = Field(description="Stable; the message is not.")


class ErrorBody(BaseModel):
    """The one shape of every error."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "error": {
                        "message": "temperatur: there is no such field",
                        "type": "invalid_request_error",
                        "param": "temperatur",
                        "code": "unknown_field",
                    }
                }
            ]
        }
    )

    error: ErrorDetail


class Alive(BaseModel):
    status: Literal["alive"]


class Ready(BaseModel):
    status: Literal["ready"]


UNREFERENCED: Final[tuple[type[BaseModel], ...]] = (TurnBody, ConversationBody, BatchBody, BatchRow)
"""Models of bodies that FastAPI neither parses nor writes; the document names them by reference."""
