"""OpenAI's wire format: what a chat completion, its chunks and its errors look like as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any, Final, Protocol

import msgspec

from aiforge.core.types import Usage
from aiforge.testing.script import error_object

encode: Final = msgspec.json.Encoder().encode
DONE: Final = b"data: [DONE]\n\n"


class StreamOptions(msgspec.Struct, frozen=True):
    """What a request wants to know about its stream."""

    include_usage: bool | None = None


class ChatRequest(msgspec.Struct, frozen=True):
    """The fields of a request that the server acts on; all others are only logged."""

    messages: list[dict[str, Any]]
    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None

    @property
    def usage_asked(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def form(self, number: int) -> Form:
        """How call number `number` is answered."""
        return Envelope(number, self.model)


class Form(Protocol):
    """How an answer is written; what an endpoint has no word for is written as nothing."""

    @property
    def done(self) -> bytes:
        """What ends a stream."""
        ...

    def head(self) -> bytes:
        """What begins a stream."""
        ...

    def text(self, text: str, usage: Usage | None = None) -> bytes: ...

    def delta(
        self, delta: Mapping[str, Any], finish_reason: str | None = None, usage: Usage | None = None
    ) -> bytes: ...

    def usage(self, usage: Usage) -> bytes: ...

    def completion(self, message: Mapping[str, Any], finish_reason: str, usage: Usage | None) -> bytes:
        """The body of a call that is not streamed."""
        ...

    def error(self, message: str, code: str) -> bytes:
        """An error in the middle of a stream."""
        ...


class Envelope:
    """What all chunks of one stream have in common, encoded once."""

    done: Final = DONE

    __slots__ = ("_head", "_text", "completion_id", "created", "model")

    def __init__(self, number: int, model: str) -> None:
        self.completion_id = f"chatcmpl-{number:08d}"
        self.created = int(time())
        self.model = model
        self._head = (
            b'data: {"id":"%b","object":"chat.completion.chunk","created":%d,"model":%b,"choices":'
            % (
                self.completion_id.encode(),
                self.created,
                encode(model),
            )
        )
        self._text = self._head + b'[{"index":0,"delta":{"content":'

    def head(self) -> bytes:
        return self.delta({"role": "assistant", "content": ""})

    def text(self, text: str, usage: Usage | None = None) -> bytes:
        """A chunk with text: the one event that is sent often."""
        if usage is None:
            return self._text + encode(text) + b'},"finish_reason":null}]}\n\n'
        return self.delta({"content": text}, usage=usage)

    def delta(
        self, delta: Mapping[str, Any], finish_reason: str | None = None, usage: Usage | None = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return self._event([choice], usage)

    def usage(self, usage: Usage) -> bytes:
        """The chunk with empty choices."""
        return self._event([], usage)

    def _event(self, choices: list[dict[str, Any]], usage: Usage | None) -> bytes:
        tail = b"" if usage is None else b',"usage":' + encode(usage_object(usage))
        return self._head + encode(choices) + tail + b"}\n\n"

    def error(self, message: str, code: str) -> bytes:
        error = {"message": message, "type": "server_error", "param": None, "code": code}
        return b"data: " + encode({"error": error}) + b"\n\n"

    def completion(self, message: Mapping[str, Any], finish_reason: str, usage: Usage | None) -> bytes:
        body: dict[str, Any] = {
            "id": self.completion_id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        }
        if usage is not None:
            body["usage"] = usage_object(usage)
        return encode(body)


def usage_object(usage: Usage) -> dict[str, Any]:
    """Usage as OpenAI reports it."""
    wire: dict[str, Any] = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    if usage.cached_tokens:
        wire["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens:
        wire["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return wire


def error_body(status: int, message: str | None = None, **fields: str | None) -> bytes:
    """An error in OpenAI's one shape."""
    error = error_object(status)
    if message is not None:
        error["message"] = message
    return encode({"error": error | fields})


def models_body(models: tuple[str, ...], created: int) -> bytes:
    data = [{"id": name, "object": "model", "created": created, "owned_by": "aiforge"} for name in models]
    return encode({"object": "list", "data": data})
