"""What `/openapi.json` says of bodies, replies and headers.

These models document; requests are decoded into the contract's structs (`api/bodies.py`) and replies
are written by `api/replies.py`. The suite checks that all of them name the same fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from aiforge.core.parameters import MOST_TOKENS
from worker.contract.schemas import DEFAULT_MEMORY_K, TurnState

Parts = list[dict[str, Any]]
Money = str
MemoryMode = Annotated[
    Literal["buffer", "summary", "none"],
    Field(description="The last `memory_k` messages, or those and a summary of the others, or nothing."),
]
_USAGE: Final[dict[str, Any]] = {
    "input_tokens": 412,
    "output_tokens": 57,
    "cached_tokens": 0,
    "cache_write_tokens": 0,
    "reasoning_tokens": 0,
    "estimated": False,
    "input_audio_tokens": 0,
    "output_audio_tokens": 0,
}
_TURN: Final[dict[str, Any]] = {
    "turn_id": "171f0a93c2d4e5b6a7f809",
    "conversation_id": "user-42",
    "state": "completed",
    "answer": "Open Settings, choose Security and press Reset password.",
    "error": None,
    "usage": _USAGE,
    "cost": "0.000096",
    "estimated_cost": "0",
    "attempts": 1,
    "model": "gpt-4o-mini",
    "metadata": {"channel": "web"},
    "created_at": 1767225600.128,
    "finished_at": 1767225601.934,
    "run_after": None,
    "question": None,
}


class Body(BaseModel):
    """What is posted: a field that it does not have is refused."""

    model_config = ConfigDict(extra="forbid")


class Defaults(Body):
    """What a turn, or a batch for all its items, may say."""

    system_prompt: str | None = Field(None, description="Instructions that stand before the conversation.")
    model: str | None = Field(None, description="The model's name; the service's own when left out.")
    temperature: float | None = Field(None, ge=0, le=2)
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS, description="The longest answer, in tokens.")
    tools: list[str] | None = Field(None, description="Names of the tools that the model may call.")
    metadata: dict[str, str] | None = Field(
        None, description="The caller's own notes; they come back unchanged."
    )


class TurnBody(Defaults):
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
    on_busy: Literal["enqueue", "reject", "interrupt", "rollback"] | None = Field(
        None,
        description="When the conversation is busy: wait in line, be refused, or stop the running turn and go"
        " next, with its partial answer kept (interrupt) or forgotten (rollback). The conversation's own"
        " when left out.",
    )
    run_after: float | None = Field(None, description="Unix seconds; the turn joins the line then.")
    client_message_id: str | None = Field(
        None, description="The same as the header Idempotency-Key: posted twice, the message is taken once."
    )


class ConversationBody(Body):
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
    memory: MemoryMode = "buffer"
    memory_k: int = Field(
        DEFAULT_MEMORY_K, ge=1, le=1000, description="How many stored messages a turn is shown."
    )
    metadata: dict[str, str] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    tools: list[str] | None = Field(None, description="Names of the tools that the model may call.")
    on_busy: Literal["enqueue", "reject", "interrupt", "rollback"] = "enqueue"
    ttl: int | None = Field(
        None,
        ge=1,
        description="Seconds that it lives after its last turn's end; the service's own when left out.",
    )


class ResumeBody(Body):
    """The answer to a turn's question; `approved` or `yes` lets a tool call run."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"question_id": "q_8f1c", "answer": "approved"}]}
    )

    question_id: str
    answer: str


class QueueBody(Body):
    """The waiting turns as they were seen, and the order they are to have."""

    expected: list[str]
    turns: list[str]


class Usage(BaseModel):
    """Tokens; `estimated` marks numbers that the provider did not report."""

    model_config = ConfigDict(json_schema_extra={"examples": [_USAGE]})

    input_tokens: int
    output_tokens: int
    cached_tokens: int = Field(description="Part of input_tokens.")
    cache_write_tokens: int = Field(description="Part of input_tokens.")
    reasoning_tokens: int = Field(description="Part of output_tokens.")
    estimated: bool
    input_audio_tokens: int = Field(description="Part of input_tokens.")
    output_audio_tokens: int = Field(description="Part of output_tokens.")


class TurnFailure(BaseModel):
    """Why there is no answer; `retryable` says whether asking again can help."""

    code: str = Field(examples=["provider_timeout"])
    message: str
    retryable: bool


class Question(BaseModel):
    """What a human is asked: to approve the call of `tool` with `input`, or for a text."""

    question_id: str
    kind: Literal["approval", "question"]
    text: str
    tool: str | None
    input: dict[str, Any] | None


class Turn(BaseModel):
    """A turn. Times are Unix seconds; what is not known yet is null."""

    model_config = ConfigDict(json_schema_extra={"examples": [_TURN]})

    turn_id: str
    conversation_id: str
    state: TurnState
    answer: str | None = Field(description="Present once the turn is completed and stored.")
    error: TurnFailure | None
    usage: Usage | None
    cost: Money | None = Field(
        description="USD as a decimal string, of all attempts; null where a price is not known."
    )
    estimated_cost: Money | None = Field(
        description="The part of `cost` that no provider reported: stopped answers, attempts that died."
    )
    attempts: int = Field(description="How many times a worker has begun it.")
    model: str | None
    metadata: dict[str, str] | None
    created_at: float
    finished_at: float | None
    run_after: float | None = Field(description="When a scheduled turn joins its conversation's line.")
    question: Question | None = Field(description="What a turn in requires_action waits for.")


class Turns(BaseModel):
    object: Literal["list"]
    data: list[Turn]
    has_more: bool


class Conversation(BaseModel):
    """A conversation; `messages` is how many are stored."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "conversation_id": "user-42",
                    "created_at": 1767225600.128,
                    "messages": 4,
                    "version": 2,
                    "baseline": 0,
                    "revision": 0,
                    "busy": False,
                    "system_prompt": None,
                    "model": None,
                    "memory": "buffer",
                    "memory_k": 20,
                    "metadata": None,
                    "temperature": None,
                    "max_tokens": None,
                    "tools": None,
                    "on_busy": "enqueue",
                    "ttl": 2592000,
                }
            ]
        }
    )

    conversation_id: str
    created_at: float
    messages: int
    version: int = Field(description="The latest; each turn that is committed makes one, each checkout too.")
    baseline: int = Field(description="The oldest version that is kept; 0 is the empty conversation.")
    revision: int = Field(description="How often its settings were changed.")
    busy: bool = Field(description="A turn of it runs, or waits for a worker or a human.")
    system_prompt: str | None
    model: str | None
    memory: MemoryMode
    memory_k: int
    metadata: dict[str, str] | None
    temperature: float | None
    max_tokens: int | None
    tools: list[str] | None
    on_busy: Literal["enqueue", "reject", "interrupt", "rollback"]
    ttl: int | None = Field(description="Seconds after its last turn's end; null is for ever.")


class ListedConversation(Conversation):
    last_turn_at: float


class Conversations(BaseModel):
    """A page of conversations, by their latest turn."""

    object: Literal["list"]
    data: list[ListedConversation]
    has_more: bool
    next: str | None = Field(description="What `before` has to be for the next page.")


class Queue(BaseModel):
    """Turn ids: the one that runs, and those that wait, in order."""

    active: str | None
    waiting: list[str]


class Erasure(BaseModel):
    """The receipt of an erased conversation. Of what its calls cost, the totals stay."""

    conversation_id: str
    messages: int
    turns: int
    stopped: int = Field(description="How many of the turns were running.")
    schedules: int = Field(description="How many schedules posted to it.")
    items: int = Field(
        description="How many items of batches, and of those that schedules post, were of it; their rows"
        " say `conversation_erased`."
    )
    files: list[str] = Field(
        description="Input and result files of batches with lines of it: they stay until they are deleted."
    )


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


UNREFERENCED: Final[tuple[type[BaseModel], ...]] = (
    TurnBody,
    ConversationBody,
    ResumeBody,
    QueueBody,
)
"""Models of bodies that FastAPI neither parses nor writes; the document names them by reference."""
