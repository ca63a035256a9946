"""What a turn returns to the caller of the library."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class ToolCallRecord(BaseModel):
    """One tool invocation of a turn; `output` is None while the tool has not returned."""

    tool: str
    input: dict[str, Any] = Field(default_factory=dict)
    output: str | None = None

    def to_text(self) -> str:
        return f"{self.tool}({self.input}) → {self.output}"


class PendingQuestion(BaseModel):
    """What a turn waits for a human to say.

    An `approval` is for the call of `tool` with `input`, which "approved" or "yes" lets run; anything
    else is told to the model as the reason of the refusal. A `question` is one of the model's own.
    """

    question_id: str
    kind: Literal["approval", "question"]
    text: str
    tool: str | None = None
    input: dict[str, Any] | None = None
    call_id: str


class ChatResponse(BaseModel):
    """The answer to one message.

    `cost` is USD for display; the exact Decimals are in `calls`, one entry per provider call of the
    turn, failed ones and summaries included. Where a call has no known price it counts as 0,
    `unpriced_calls` says how many there are and `priced` is False.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    message: str
    conversation_id: str
    tool_calls: list[ToolCallRecord] = Field(default_factory=list)
    iterations: int = 0
    memory_mode: str = "buffer"
    cost: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    model: str = ""
    trace_id: str = ""
    latency_ms: float = 0.0
    status: Literal["completed", "requires_action"] = "completed"
    question: PendingQuestion | None = None
    """What is asked where the status is "requires_action"; there is no message then."""
    iteration_limit: bool = False
    """The tools were taken away because `max_tool_iterations` was reached."""
    priced: bool = True
    unpriced_calls: int = 0
    calls: list[Any] = Field(default_factory=list, exclude=True, repr=False)

    def to_text(self) -> str:
        return self.message
