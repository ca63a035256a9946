"""What goes into a turn, who is told of its provider calls, and what comes out of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from langchain_core.language_models import BaseChatModel

from aiforge.core.deltas import CallParams
from aiforge.core.fallbacks import Fallbacks
from aiforge.core.gate import Gate
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ProviderCall, Usage
from aiforge.modules.chat.budget import Budget
from aiforge.modules.chat.prompts import SUMMARY_MESSAGE
from aiforge.modules.chat.quote import quote
from aiforge.modules.chat.schemas import PendingQuestion, ToolCallRecord


def instructions(system_prompt: str, summary: str | None) -> list[dict[str, Any]]:
    """The messages that a request begins with; the summary is a quotation in one of its own."""
    messages: list[dict[str, Any]] = []
    if system_prompt:
        messages.append({"role": "system", "content": system_prompt})
    if summary:
        quotation = SUMMARY_MESSAGE.format(summary=quote(summary, "summary"))
        messages.append({"role": "system", "content": quotation})
    return messages


@dataclass(frozen=True, slots=True)
class Resume:
    """How a paused turn goes on: the messages of its TurnResult, and what was answered, by call id.

    Calls without a result that wait for no human are made, so this also continues an interrupted turn.
    """

    messages: list[dict[str, Any]]
    answers: Mapping[str, str] = field(default_factory=dict)
    begun: Collection[str] = ()
    """Ids of calls that were begun before. Without a result they may have been done, so only those of an
    idempotent tool are made again; of any other the model is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSpec:
    """All that a turn needs, already resolved.

    `history` is the window without a system prompt: it begins with a user message and never
    separates a tool call from its results (`memory.trim` makes such windows). An empty
    `system_prompt` sends none. With `stream=False` every round is one request without a stream,
    and there are no token events.
    """

    message: str | list[dict[str, Any]]
    history: Sequence[dict[str, Any]] = ()
    summary: str | None = None
    """What happened before the window, sent as a quotation after the system prompt."""
    system_prompt: str
    model: BaseChatModel
    provider: str
    model_name: str
    tools: Sequence[Any] = ()
    native_tools: bool = True
    """False: the model has no tool calling, so tools are offered and asked for in words."""
    params: CallParams
    max_tool_iterations: int = 5
    stream: bool = True
    budget: Budget | None = None
    """Keeps requests within the model's window; None sends them as they are."""
    settings: AIForgeSettings
    metadata: Mapping[str, str] = field(default_factory=dict)
    turn_id: str = ""
    """Part of the key that each tool call has (`current_call_key`); empty is a new one."""
    journal: Journal | None = None
    gate: Gate | None = None
    """Who lets provider calls begin; None lets them all."""
    fallbacks: Fallbacks | None = None
    """Whom to ask when the model has failed for good."""
    attempt: int | None = None
    """The attempt that a Reset names, when another model begins anew after tokens went out; None says that
    tokens cannot be taken back, so nobody else is asked then."""
    resume: Resume | None = None
    """Continue this turn; its own user message is the first of these messages, and `message` is not used."""

    @property
    def text(self) -> str:
        """The words of `message`, whatever else is in it."""
        return text_of(self.message)


def text_of(content: str | list[dict[str, Any]]) -> str:
    """The words of a message's content."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if isinstance(part.get("text"), str))


class Journal(Protocol):
    """Where a turn that may be begun again keeps what its tools have done."""

    async def begin(self, messages: list[dict[str, Any]], calls: list[str]) -> None:
        """These calls are about to be made, of the last of these messages that has calls."""
        ...

    async def end(self, message: dict[str, Any]) -> None:
        """A call has ended; this is its result as the model gets it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What a turn that ended well has produced."""

    answer: str
    messages: list[dict[str, Any]]
    """What memory gains: user message, tool calls and their results, answer.

    Of a paused turn what it has so far: some calls of its last message with calls have no result yet.
    """
    tool_calls: list[ToolCallRecord]
    iterations: int
    iteration_limit: bool
    """The model was asked for its answer without tools, because it had used up its rounds."""
    usage: Usage
    calls: list[ProviderCall]
    """All provider calls of the turn, failed ones too, in the order in which they ended."""
    model: str
    pending: PendingQuestion | None = None
    """The turn is paused for this; there is no answer yet."""
    finish: str = ""
    """Why the model ended its answer: `stop`, or `length` where it was cut short, and so on."""
