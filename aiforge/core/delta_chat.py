"""The face that our own models show to LangChain; behind it they only know deltas."""

from __future__ import annotations

import uuid
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from aiforge.core.bridge import iterate, run
from aiforge.core.deltas import (
    AssembledCall,
    CallParams,
    CallRequest,
    Completion,
    Delta,
    FinishDelta,
    TextDelta,
    ToolCallDelta,
    UsageDelta,
    assemble,
)
from aiforge.core.types import Usage

_PARAMS: Final = ("temperature", "max_tokens")


class DeltaChat(BaseChatModel):
    """A chat model that answers in deltas (`stream`) or at once (`complete`).

    A turn calls these two directly. LangChain's `invoke`, `ainvoke`, `stream`, `astream` and
    `bind_tools` are built on them.
    """

    model_name: str

    @abstractmethod
    def stream_deltas(self, request: CallRequest) -> AsyncGenerator[Delta, None]:
        """One streamed call."""

    @abstractmethod
    async def complete(self, request: CallRequest) -> Completion:
        """One call that is answered at once."""

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": self.model_name}

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """This model with tools; `tool_choice` is "auto", "none", "any" or the name of a tool."""
        if tool_choice is not None:
            kwargs["tool_choice"] = _tool_choice(tool_choice)
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer = await self.complete(_request(messages, stop, kwargs))
        message = AIMessage(
            content=answer.text,
            tool_calls=[tool_call(**_parsed(call)) for call in answer.tool_calls if _is_object(call)],
            invalid_tool_calls=[
                invalid_tool_call(name=call.name, args=call.arguments, id=call.id, error="not a JSON object")
                for call in answer.tool_calls
                if not _is_object(call)
            ],
            usage_metadata=usage_metadata(answer.usage),
            response_metadata={"finish_reason": answer.finish_reason, "model_name": answer.model},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[ChatGenerationChunk, None]:
        pieces: list[ToolCallDelta] = []
        usage: Usage | None = None
        async with aclosing(self.stream_deltas(_request(messages, stop, kwargs))) as deltas:
            async for delta in deltas:
                match delta:
                    case TextDelta(text):
                        yield ChatGenerationChunk(message=AIMessageChunk(content=text))
                    case ToolCallDelta():
                        pieces.append(delta)
                    case UsageDelta(found):
                        usage = found
                    case FinishDelta(reason):
                        yield self._last_chunk(pieces, usage, reason)

    def _last_chunk(
        self, pieces: list[ToolCallDelta], usage: Usage | None, reason: str
    ) -> ChatGenerationChunk:
        # LangChain joins fragments by index alone, so it only gets whole calls.
        chunks = [
            tool_call_chunk(name=call.name, args=call.arguments, id=call.id, index=position)
            for position, call in enumerate(assemble(pieces))
        ]
        message = AIMessageChunk(
            content="",
            tool_call_chunks=chunks,
            usage_metadata=usage_metadata(usage or Usage()),
            response_metadata={"finish_reason": reason, "model_name": self.model_name},
            chunk_position="last",
        )
        return ChatGenerationChunk(message=message, generation_info={"finish_reason": reason})

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return run(self._agenerate(messages, stop, None, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        yield from iterate(self._astream(messages, stop, None, **kwargs))


def _request(messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]) -> CallRequest:
    """LangChain's arguments in ours."""
    converted = convert_to_openai_messages(messages)
    assert isinstance(converted, list)
    extra = {name: value for name, value in kwargs.items() if not name.startswith("ls_")}
    params = {name: extra.pop(name) for name in _PARAMS if name in extra}
    tools = extra.pop("tools", None)
    return CallRequest(converted, tools, CallParams(**params, stop=stop), uuid.uuid4().hex, extra)


def _tool_choice(choice: str) -> str | dict[str, Any]:
    if choice in {"auto", "none", "required"}:
        return choice
    return "required" if choice == "any" else {"type": "function", "function": {"name": choice}}


def _is_object(call: AssembledCall) -> bool:
    try:
        return isinstance(msgspec.json.decode(call.arguments), dict)
    except msgspec.DecodeError:
        return False


def _parsed(call: AssembledCall) -> dict[str, Any]:
    return {"name": call.name, "args": msgspec.json.decode(call.arguments), "id": call.id}


def usage_metadata(usage: Usage) -> UsageMetadata:
    """Usage in LangChain's words."""
    return UsageMetadata(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        input_token_details={"cache_read": usage.cached_tokens, "cache_creation": usage.cache_write_tokens},
        output_token_details={"reasoning": usage.reasoning_tokens},
    )
