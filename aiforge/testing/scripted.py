"""A LangChain chat model that says what it is told, for tests of agent code without HTTP.

    model = ScriptedModel(replies=[ToolCall("add", {"a": 1}), "It is 1."])

One reply a call. A reply is a text, a list of chunks, a tool call or several, a whole `AIMessage`, an
exception to raise, or a function that makes one of these from the messages. An exception among chunks
breaks the stream at that place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ToolCallChunk,
    convert_to_openai_messages,
)
from langchain_core.messages.tool import default_tool_parser
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import ConfigDict, Field, PrivateAttr

from aiforge.core.delta_chat import usage_metadata
from aiforge.core.types import Usage
from aiforge.testing.script import ToolCall
from aiforge.testing.shapes import tool_deltas
from aiforge.testing.text import count_messages, pieces

Said: TypeAlias = str | ToolCall | Sequence[str | ToolCall | BaseException] | AIMessage | BaseException
ScriptedReply: TypeAlias = Said | Callable[[list[BaseMessage]], Said]


class NoReplyLeft(AssertionError):
    """The model was called more often than it has replies."""


class ScriptedModel(BaseChatModel):
    """Replies in order; with `repeat_last` the last one again and again, else NoReplyLeft.

    `usage` is what each call reports, None counts; `requests` holds what each call was asked.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    replies: list[Any] = Field(default_factory=list)
    """Of type ScriptedReply."""
    repeat_last: bool = False
    model_name: str = "scripted"
    usage: Usage | None = None

    _asked: list[dict[str, Any]] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Each call's `messages` in OpenAI's form, its `tools` and all other keywords."""
        return self._asked

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        said = self._next(messages, stop, kwargs)
        message = said if isinstance(said, AIMessage) else _whole(list(self._chunks(said)))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for message in self._chunks(self._next(messages, stop, kwargs)):
            chunk = ChatGenerationChunk(message=message)
            if run_manager is not None:
                run_manager.on_llm_new_token(message.text, chunk=chunk)
            yield chunk

    def _chunks(self, said: Said) -> Iterator[AIMessageChunk]:
        if isinstance(said, BaseException):
            raise said
        if isinstance(said, AIMessage):
            yield AIMessageChunk(**said.model_dump(exclude={"type"}), chunk_position="last")
            return
        texts, calls = 0, []
        for part in _parts(said):
            if isinstance(part, BaseException):
                raise part
            if isinstance(part, ToolCall):
                calls.append(part)
            else:
                texts += 1
                yield AIMessageChunk(content=part)
        deltas = tool_deltas(calls)
        for delta in deltas:
            yield AIMessageChunk(content="", tool_call_chunks=[_tool_chunk(delta.delta["tool_calls"][0])])
        usage = self.usage or Usage(count_messages(self._asked[-1]["messages"]), texts + len(deltas))
        finish_reason = "tool_calls" if calls else "stop"
        yield AIMessageChunk(
            content="",
            usage_metadata=usage_metadata(usage),
            response_metadata={"finish_reason": finish_reason, "model_name": self.model_name},
            chunk_position="last",
        )

    def _next(self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any]) -> Said:
        asked = convert_to_openai_messages(messages)
        self._asked.append({"messages": asked, "stop": stop, **options})
        number = len(self._asked) - 1
        if self.repeat_last:
            number = min(number, len(self.replies) - 1)
        if not 0 <= number < len(self.replies):
            raise NoReplyLeft(f"call {len(self._asked)}, but {len(self.replies)} replies are scripted")
        reply: ScriptedReply = self.replies[number]
        return reply(messages) if callable(reply) else reply


def _parts(
    said: str | ToolCall | Sequence[str | ToolCall | BaseException],
) -> Sequence[str | ToolCall | BaseException]:
    if isinstance(said, str):
        return pieces(said)
    return [said] if isinstance(said, ToolCall) else said


def _whole(chunks: list[AIMessageChunk]) -> AIMessage:
    """The message of a call that is not streamed; arguments that are no JSON make an invalid call."""
    whole = sum(chunks[1:], start=chunks[0])
    raw = [
        {"id": part["id"], "function": {"name": part["name"], "arguments": part["args"]}}
        for part in whole.tool_call_chunks
    ]
    calls, invalid = default_tool_parser(raw)
    return AIMessage(
        content=whole.content,
        tool_calls=calls,
        invalid_tool_calls=invalid,
        usage_metadata=whole.usage_metadata,
        response_metadata=whole.response_metadata,
    )


def _tool_chunk(part: dict[str, Any]) -> ToolCallChunk:
    function = part["function"]
    return ToolCallChunk(
        name=function.get("name"),
        args=function["arguments"],
        id=part.get("id"),
        index=part["index"],
        type="tool_call_chunk",
    )
