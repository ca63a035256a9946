"""LangChain models that are not ours: their chunks become deltas, their errors our tree."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Final, NoReturn

import msgspec
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_messages
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import Runnable
from pydantic import SecretStr

from aiforge.core import bridge
from aiforge.core.delta_chat import DeltaChat
from aiforge.core.deltas import (
    CALL_ID_HEADER,
    AssembledCall,
    CallRequest,
    Completion,
    Delta,
    FinishDelta,
    TextDelta,
    ToolCallDelta,
    UsageDelta,
)
from aiforge.core.foreign_errors import translated
from aiforge.core.texts import encodable
from aiforge.core.tokens import believed, estimate_usage
from aiforge.core.types import AIForgeError, APITimeoutError, ConfigError, ProviderError, Usage

_FINISH_KEYS: Final = ("finish_reason", "stop_reason", "stopReason", "done_reason")
_FINISH_WORDS: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
}
_ONCE: Final = {"langchain_openai": 0, "langchain_anthropic": 0, "langchain_mistralai": 1}
"""The `max_retries` with which a package repeats nothing; Mistral's counts attempts under that name."""
_MAX_TOKENS_FIELDS: Final = ("max_tokens", "max_output_tokens", "num_predict")
"""What one package or another calls the limit of output tokens."""


class ForeignLimits(msgspec.Struct, frozen=True):
    """Time limits in seconds. Connecting counts into the first token: these models connect by themselves."""

    first_token: float = 120.0
    token: float = 60.0


class ForeignChat(DeltaChat):
    """A LangChain model in our face, with our time limits."""

    inner: BaseChatModel
    limits: ForeignLimits = ForeignLimits()

    @property
    def _llm_type(self) -> str:
        return self.inner._llm_type

    def stream_deltas(self, request: CallRequest) -> AsyncGenerator[Delta, None]:
        """One streamed call through `astream`."""
        deltas = self._streamed(request)
        return bridge.stream_there(deltas) if _keeps_clients(self.inner) else deltas

    async def complete(self, request: CallRequest) -> Completion:
        """One call through `ainvoke`."""
        answer = self._completed(request)
        return await (bridge.there(answer) if _keeps_clients(self.inner) else answer)

    async def _streamed(self, request: CallRequest) -> AsyncGenerator[Delta, None]:
        prepared, options = _prepared(self.inner, request)
        chunks = prepared.astream(_messages(request), **options)
        usage: Usage | None = None
        finish: str | None = None
        output: list[str] = []
        called = False
        limit = self.limits.first_token
        failure: ProviderError | None = None
        try:
            while (chunk := await _next(chunks, limit, self.inner)) is not None:
                for delta in _deltas(chunk):
                    limit = self.limits.token
                    called = called or isinstance(delta, ToolCallDelta)
                    output.append(delta.text if isinstance(delta, TextDelta) else delta.arguments)
                    yield delta
                if chunk.usage_metadata:
                    usage = (usage or Usage()) + _usage(chunk.usage_metadata)
                finish = _finish(chunk) or finish
        except ProviderError as error:
            failure = error
        known, seen = believed(usage), estimate_usage(request.messages, request.tools, "".join(output))
        if failure is not None:
            if known is not None:
                yield UsageDelta(_at_least(known, seen))
            raise failure
        yield UsageDelta(known or seen)
        yield FinishDelta(finish or ("tool_calls" if called else "stop"))

    async def _completed(self, request: CallRequest) -> Completion:
        prepared, options = _prepared(self.inner, request)
        asked, limit = _messages(request), self.limits.first_token
        try:
            async with asyncio.timeout(limit) as clock:
                answer = await prepared.ainvoke(asked, **options)
        except Exception as error:  # noqa: BLE001  # whatever a foreign package raises becomes our tree here
            _fail(error, self.inner, clock, limit)
        calls = _whole_calls(answer)
        text = encodable(answer.text)
        output = text + "".join(call.arguments for call in calls)
        return Completion(
            text=text,
            tool_calls=calls,
            usage=believed(_usage(answer.usage_metadata) if answer.usage_metadata else None)
            or estimate_usage(request.messages, request.tools, output),
            finish_reason=_finish(answer) or ("tool_calls" if calls else "stop"),
            model=str(answer.response_metadata.get("model_name") or model_name(self.inner)),
        )


def delta_chat(model: BaseChatModel) -> DeltaChat:
    """A model in our face, which it may have already."""
    return model if isinstance(model, DeltaChat) else ForeignChat(model_name=model_name(model), inner=model)


def _messages(request: CallRequest) -> list[BaseMessage]:
    return convert_to_messages([dict(message) for message in request.messages])


def _keeps_clients(model: BaseChatModel) -> bool:
    """Whether a package made this model that keeps its HTTP clients for the whole process.

    A client belongs to the event loop that used it first, and fails on every other one. Models of
    one's own stay on the loop that calls them, as does one that was given a client.
    """
    if getattr(model, "http_async_client", None) is not None:
        return False
    return any(name.startswith("langchain_") and name != "langchain_core" for name in _packages(model))


def _packages(model: BaseChatModel) -> set[str]:
    """The packages that this model's class and its bases come from."""
    return {cls.__module__.partition(".")[0] for cls in type(model).__mro__}


def _once(model: BaseChatModel) -> dict[str, Any]:
    """What makes a model ask once and no more: the one retry layer is the turn's."""
    attempts = next((_ONCE[name] for name in _packages(model) if name in _ONCE), None)
    if attempts is None or getattr(model, "max_retries", attempts) == attempts:
        return {}
    client = getattr(model, "root_async_client", None)
    if client is None:
        return {"max_retries": attempts}
    # OpenAI's package makes its client from the number, and does not look at it again.
    client = client.with_options(max_retries=attempts)
    return {
        "max_retries": attempts,
        "root_async_client": client,
        "async_client": client.chat.completions,
    }


def model_name(model: BaseChatModel) -> str:
    """What the model calls itself, or the name of its class."""
    for field in ("model_name", "model", "model_id"):
        if isinstance(value := getattr(model, field, None), str):
            return value
    return type(model).__name__


async def _next(
    chunks: AsyncIterator[AIMessageChunk], limit: float, model: BaseChatModel
) -> AIMessage | None:
    """The next chunk, None at the end."""
    try:
        async with asyncio.timeout(limit) as clock:
            return await anext(chunks, None)
    except Exception as error:  # noqa: BLE001  # whatever a foreign package raises becomes our tree here
        _fail(error, model, clock, limit)


def _prepared(
    model: BaseChatModel, request: CallRequest
) -> tuple[Runnable[LanguageModelInput, Any], dict[str, Any]]:
    """The model set up for one call, and the keywords of the call.

    Not every package takes temperature and token limit as keywords; those that know a setting of
    that name get a copy of the model instead.
    """
    params = request.params
    options: dict[str, Any] = {"stop": params.stop, **request.extra} if params.stop else {**request.extra}
    changes: dict[str, Any] = {}
    fields = type(model).model_fields
    if params.temperature is not None:
        (changes if "temperature" in fields else options)["temperature"] = params.temperature
    if params.max_tokens is not None:
        field = next((name for name in _MAX_TOKENS_FIELDS if name in fields), None)
        (changes if field else options)[field or "max_tokens"] = params.max_tokens
    changes |= _once(model)
    if any(getattr(model, name) != value for name, value in changes.items()):
        model = model.model_copy(update=changes)
        for kept in ("_client_params", "_async_client"):  # Anthropic's, made from what was set before
            model.__dict__.pop(kept, None)
    if type(model).__name__ == "ChatAnthropic":
        options["extra_headers"] = {CALL_ID_HEADER: request.call_id}
    if not request.tools:
        return model, options
    try:
        return model.bind_tools([dict(tool) for tool in request.tools]), options
    except NotImplementedError:
        raise ConfigError(
            f"{model_name(model)} takes no tools; native_tools=False asks for them in words"
        ) from None


def _deltas(chunk: AIMessage) -> list[TextDelta | ToolCallDelta]:
    # LangChain's text is a subclass of str.
    deltas: list[TextDelta | ToolCallDelta] = [TextDelta(encodable(chunk.text))] if chunk.text else []
    if isinstance(chunk, AIMessageChunk):
        for piece in chunk.tool_call_chunks:
            index = piece["index"] if isinstance(piece["index"], int) else None
            deltas.append(ToolCallDelta(index, piece["id"], piece["name"], piece["args"] or ""))
    else:
        deltas += [ToolCallDelta(None, call.id, call.name, call.arguments) for call in _whole_calls(chunk)]
    return deltas


def _whole_calls(message: AIMessage) -> list[AssembledCall]:
    calls = [(call["id"], call["name"], _json(call["args"])) for call in message.tool_calls]
    calls += [(bad["id"], bad["name"] or "", bad["args"] or "") for bad in message.invalid_tool_calls]
    return [
        AssembledCall(call_id or f"call_{position}", name, arguments)
        for position, (call_id, name, arguments) in enumerate(calls)
    ]


def _json(arguments: object) -> str:
    return msgspec.json.encode(arguments, enc_hook=str).decode()


def _usage(reported: UsageMetadata) -> Usage:
    details: Mapping[str, Any] = reported.get("input_token_details") or {}
    # Anthropic's package splits what was written to the cache by how long it is kept.
    written = [details.get(key) or 0 for key in details if key == "cache_creation" or "ephemeral" in key]
    output: Mapping[str, Any] = reported.get("output_token_details") or {}
    return Usage(
        input_tokens=reported["input_tokens"],
        output_tokens=reported["output_tokens"],
        cached_tokens=details.get("cache_read") or 0,
        cache_write_tokens=sum(written),
        reasoning_tokens=output.get("reasoning") or 0,
        input_audio_tokens=details.get("audio") or 0,
        output_audio_tokens=output.get("audio") or 0,
    )


def _at_least(known: Usage, seen: Usage) -> Usage:
    """Of a call that broke off: some providers report the input ahead, and the answer only at its end."""
    if seen.output_tokens <= known.output_tokens:
        return known
    return msgspec.structs.replace(known, output_tokens=seen.output_tokens, estimated=True)


def _finish(message: AIMessage) -> str | None:
    said = (message.response_metadata.get(key) for key in _FINISH_KEYS)
    word = next((str(value) for value in said if value), None)
    return None if word is None else _FINISH_WORDS.get(word.lower(), word.lower())


def _fail(error: Exception, model: BaseChatModel, clock: asyncio.Timeout, limit: float) -> NoReturn:
    if isinstance(error, AIForgeError):
        raise error
    name = model_name(model)
    provider = model._llm_type
    if clock.expired():
        raise APITimeoutError(
            f"{provider}, {name}: no token within {limit:g} s", provider=provider, model=name
        ) from None
    raise translated(error, provider=provider, model=name, secrets=_secrets(model)) from None


def _secrets(model: BaseChatModel) -> list[SecretStr]:
    values = (getattr(model, name, None) for name in type(model).model_fields)
    return [value for value in values if isinstance(value, SecretStr) and value.get_secret_value()]
