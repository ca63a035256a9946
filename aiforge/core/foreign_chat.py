"""LangChain models that are not ours: their chunks become deltas, their errors our tree.

Their packages are optional and each has its own error classes, so an error is read by what all of
them carry: a status, a class of LangChain's own tree, or at least a telling name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec
from langchain_core import exceptions
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, convert_to_messages
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import Runnable
from pydantic import SecretStr

from aiforge.core.delta_chat import DeltaChat
from aiforge.core.deltas import (
    CALL_ID_HEADER,
    AssembledCall,
    CallParams,
    Completion,
    Delta,
    FinishDelta,
    TextDelta,
    ToolCallDelta,
    UsageDelta,
)
from aiforge.core.openai_chat.failures import error_class, error_text, from_stream, retry_after, without
from aiforge.core.tokens import estimate_usage
from aiforge.core.types import (
    AIForgeError,
    APITimeoutError,
    AuthenticationError,
    ConfigError,
    ProviderError,
    RateLimitError,
    RequestRefusedError,
    UnavailableError,
    Usage,
)

_FINISH_KEYS: Final = ("finish_reason", "stop_reason", "stopReason", "done_reason")
_FINISH_WORDS: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
}
_MAX_TOKENS_FIELDS: Final = ("max_tokens", "max_output_tokens", "num_predict")
"""What one package or another calls the limit of output tokens."""

_BY_CLASS: Final[tuple[tuple[type[Exception], type[ProviderError]], ...]] = (
    (exceptions.ModelAuthenticationError, AuthenticationError),
    (exceptions.ModelPermissionDeniedError, AuthenticationError),
    (exceptions.ModelInvalidRequestError, RequestRefusedError),
    (exceptions.ModelNotFoundError, RequestRefusedError),
    (exceptions.ContextOverflowError, RequestRefusedError),
    (exceptions.ModelRateLimitError, RateLimitError),
    (exceptions.ModelTimeoutError, APITimeoutError),
    (exceptions.ModelConnectionError, UnavailableError),
    (exceptions.ModelAPIError, UnavailableError),
    (TimeoutError, APITimeoutError),
    (ConnectionError, UnavailableError),
)
_BY_NAME: Final = (
    ("Timeout", APITimeoutError),
    ("Connect", UnavailableError),
    ("Network", UnavailableError),
    ("Protocol", UnavailableError),
    ("ReadError", UnavailableError),
    ("Credentials", AuthenticationError),
)
"""Parts of class names that httpx, botocore and google's packages use."""


class ForeignLimits(msgspec.Struct, frozen=True):
    """Time limits in seconds. Connecting counts into the first token: these models connect by themselves."""

    first_token: float = 120.0
    token: float = 60.0


DEFAULT_LIMITS: Final = ForeignLimits()
NO_EXTRA: Final[Mapping[str, Any]] = {}


class ForeignChat(DeltaChat):
    """A LangChain model in our face, with our time limits."""

    inner: BaseChatModel
    limits: ForeignLimits = DEFAULT_LIMITS

    @property
    def _llm_type(self) -> str:
        return self.inner._llm_type

    def stream_deltas(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        params: CallParams,
        call_id: str,
        extra: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Delta, None]:
        """One streamed call."""
        return stream_foreign(
            self.inner,
            messages,
            tools=tools,
            params=params,
            call_id=call_id,
            extra=extra or {},
            limits=self.limits,
        )

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        params: CallParams,
        call_id: str,
        extra: Mapping[str, Any] | None = None,
    ) -> Completion:
        """One call that is answered in one piece."""
        return await complete_foreign(
            self.inner,
            messages,
            tools=tools,
            params=params,
            call_id=call_id,
            extra=extra or {},
            limits=self.limits,
        )


async def stream_foreign(
    model: BaseChatModel,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    params: CallParams,
    call_id: str,
    extra: Mapping[str, Any] = NO_EXTRA,
    limits: ForeignLimits = DEFAULT_LIMITS,
) -> AsyncGenerator[Delta, None]:
    """One streamed call through `astream`."""
    prepared, options = _prepared(model, tools, params, call_id)
    chunks = prepared.astream(
        convert_to_messages([dict(message) for message in messages]), **options, **extra
    )
    usage: Usage | None = None
    finish: str | None = None
    output: list[str] = []
    called = False
    limit = limits.first_token
    while (chunk := await _next(chunks, limit, model)) is not None:
        for delta in _deltas(chunk):
            limit = limits.token
            called = called or isinstance(delta, ToolCallDelta)
            output.append(delta.text if isinstance(delta, TextDelta) else delta.arguments)
            yield delta
        if chunk.usage_metadata:
            usage = (usage or Usage()) + _usage(chunk.usage_metadata)
        finish = _finish(chunk) or finish
    yield UsageDelta(usage or estimate_usage(messages, tools, "".join(output)))
    yield FinishDelta(finish or ("tool_calls" if called else "stop"))


async def complete_foreign(
    model: BaseChatModel,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    params: CallParams,
    call_id: str,
    extra: Mapping[str, Any] = NO_EXTRA,
    limits: ForeignLimits = DEFAULT_LIMITS,
) -> Completion:
    """One call through `ainvoke`."""
    prepared, options = _prepared(model, tools, params, call_id)
    asked = convert_to_messages([dict(message) for message in messages])
    try:
        async with asyncio.timeout(limits.first_token) as clock:
            answer = await prepared.ainvoke(asked, **options, **extra)
    except Exception as error:  # noqa: BLE001  # whatever a foreign package raises becomes our tree here
        _fail(error, model, clock, limits.first_token)
    calls = _whole_calls(answer)
    text = str(answer.text)
    output = text + "".join(call.arguments for call in calls)
    return Completion(
        text=text,
        tool_calls=calls,
        usage=_usage(answer.usage_metadata)
        if answer.usage_metadata
        else estimate_usage(messages, tools, output),
        finish_reason=_finish(answer) or ("tool_calls" if calls else "stop"),
        model=str(answer.response_metadata.get("model_name") or model_name(model)),
    )


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
    model: BaseChatModel, tools: Sequence[Mapping[str, Any]] | None, params: CallParams, call_id: str
) -> tuple[Runnable[LanguageModelInput, Any], dict[str, Any]]:
    """The model set up for one call, and the keywords of the call.

    Not every package takes temperature and token limit as keywords; those that know a setting of
    that name get a copy of the model instead.
    """
    options: dict[str, Any] = {"stop": params.stop} if params.stop else {}
    changes: dict[str, Any] = {}
    fields = type(model).model_fields
    if params.temperature is not None:
        (changes if "temperature" in fields else options)["temperature"] = params.temperature
    if params.max_tokens is not None:
        field = next((name for name in _MAX_TOKENS_FIELDS if name in fields), None)
        (changes if field else options)[field or "max_tokens"] = params.max_tokens
    if any(getattr(model, name) != value for name, value in changes.items()):
        model = model.model_copy(update=changes)
    if type(model).__name__ == "ChatAnthropic":
        options["extra_headers"] = {CALL_ID_HEADER: call_id}
    if not tools:
        return model, options
    try:
        return model.bind_tools([dict(tool) for tool in tools]), options
    except NotImplementedError:
        raise ConfigError(
            f"{model_name(model)} takes no tools; native_tools=False asks for them in words"
        ) from None


def _deltas(chunk: AIMessage) -> list[TextDelta | ToolCallDelta]:
    # msgspec encodes exact types only, and LangChain text is a subclass of str.
    deltas: list[TextDelta | ToolCallDelta] = [TextDelta(str(chunk.text))] if chunk.text else []
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
    return Usage(
        input_tokens=reported["input_tokens"],
        output_tokens=reported["output_tokens"],
        cached_tokens=details.get("cache_read") or 0,
        cache_write_tokens=sum(written),
        reasoning_tokens=(reported.get("output_token_details") or {}).get("reasoning") or 0,
    )


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


def translated(
    error: Exception, *, provider: str, model: str, secrets: Sequence[SecretStr] = ()
) -> ProviderError:
    """A foreign error in our tree; its text, but neither a secret nor the error itself, goes along."""
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    body = getattr(error, "body", None)
    text = error_text(body) or error_text(str(error)) or "no text"
    for secret in secrets:
        text = without(text, secret)
    if not (isinstance(status, int) and 400 <= status < 600):
        if isinstance(body, dict) and body:
            return from_stream(body.get("error") or body, provider=provider, model=model)
        return _class_of(error)(
            f"{provider}, {model}: {text} ({type(error).__name__})", provider=provider, model=model
        )
    headers = getattr(response, "headers", None)
    return error_class(status)(
        f"{provider} answered {status} for {model}: {text}",
        status=status,
        retry_after=retry_after(headers) if isinstance(headers, Mapping) else None,
        provider=provider,
        model=model,
    )


def _class_of(error: Exception) -> type[ProviderError]:
    for foreign, ours in _BY_CLASS:
        if isinstance(error, foreign):
            return ours
    names = [cls.__name__ for cls in type(error).__mro__]
    for part, ours in _BY_NAME:
        if any(part in name for name in names):
            return ours
    # SDKs notice a missing key only when they build the request, and raise a TypeError or ValueError.
    about_keys = any(word in str(error).lower() for word in ("authentication", "api key", "api_key"))
    return AuthenticationError if about_keys else ProviderError


def _secrets(model: BaseChatModel) -> list[SecretStr]:
    values = (getattr(model, name, None) for name in type(model).model_fields)
    return [value for value in values if isinstance(value, SecretStr) and value.get_secret_value()]
