"""OpenAI's chat completion format as typed structs, and what it means in deltas.

Only the fields that are used are declared: msgspec skips the others without building them. Types
are as wide as compatible servers are careless, so that an answer is not lost to a detail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from aiforge.core.deltas import CallParams, Delta, TextDelta, ToolCallDelta
from aiforge.core.openai_chat.sse import EventReader, EventTooLargeError
from aiforge.core.types import Usage


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: int | None = None

    def read(self) -> Usage | None:
        """What was reported, zeros included; None if nothing was."""
        if self.prompt_tokens is None and self.completion_tokens is None:
            return None
        details = self.prompt_tokens_details or _InputDetails()
        output = self.completion_tokens_details or _OutputDetails()
        return Usage(
            input_tokens=self.prompt_tokens or 0,
            output_tokens=self.completion_tokens or 0,
            cached_tokens=details.cached_tokens or self.prompt_cache_hit_tokens or 0,
            cache_write_tokens=details.cache_write_tokens or 0,
            reasoning_tokens=output.reasoning_tokens or 0,
        )


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None

    def read(self) -> ToolCallDelta:
        function = self.function or _Function()
        arguments = function.arguments or ""
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        return ToolCallDelta(self.index, self.id, function.name, arguments)


class _Part(msgspec.Struct):
    text: str | None = None


class _Message(msgspec.Struct):
    """A streamed `delta` or a whole `message`."""

    content: str | list[_Part] | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    def text(self) -> str:
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text or "" for part in content)
        return content or self.refusal or ""


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None
    usage: _Usage | None = None


class _Chunk(msgspec.Struct):
    """One event of a stream, or a whole reply."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None


_decode_chunk: Final = msgspec.json.Decoder(_Chunk, strict=False).decode
_DONE: Final = b"[DONE]"
_REASONING_MODELS: Final = ("o1", "o3", "o4", "gpt-5")
"""Model families that take `max_completion_tokens` and refuse `max_tokens`."""


def request_body(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    stream: bool,
    tools: Sequence[Any] | None,
    params: CallParams,
    minimal: bool,
    extra: Mapping[str, Any],
) -> bytes:
    """The JSON of a request. A `minimal` endpoint gets only what every server takes."""
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": stream}
    if params.temperature is not None:
        body["temperature"] = params.temperature
    if params.max_tokens is not None:
        modern = not minimal and model.rpartition("/")[2].startswith(_REASONING_MODELS)
        body["max_completion_tokens" if modern else "max_tokens"] = params.max_tokens
    if params.stop:
        body["stop"] = params.stop
    if not minimal:
        if stream:
            body["stream_options"] = {"include_usage": True}
        if tools:
            body["tools"] = tools
        body.update(extra)
    return msgspec.json.encode(body)


class AnswerReader:
    """Raw bytes in, deltas out; keeps usage and end to itself, because they come last and once.

    `error` is what the provider reported inside its answer, `failure` what is wrong with the answer's
    form; what came before either is still given out.
    """

    __slots__ = (
        "_called",
        "_events",
        "_output",
        "_read_any",
        "done",
        "error",
        "failure",
        "finish",
        "model",
        "started",
        "usage",
    )

    def __init__(self) -> None:
        self._events = EventReader()
        self._output: list[str] = []
        self._called = False
        self._read_any = False
        self.model: str | None = None
        self.started = False
        """Whether the model has begun to answer, or at least to reason."""
        self.done = False
        """Whether the provider has said its last word."""
        self.finish: str | None = None
        self.usage: Usage | None = None
        self.error: object = None
        self.failure: str | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more is worth reading."""
        return self.done or self.error is not None or self.failure is not None

    @property
    def complete(self) -> bool:
        """Whether the provider said that this is the whole answer."""
        return self.done or self.finish is not None

    @property
    def reason(self) -> str:
        """Why the answer ended, also where the provider does not say."""
        return self.finish or ("tool_calls" if self._called else "stop")

    @property
    def output(self) -> str:
        """All that the model wrote, tool calls included."""
        return "".join(self._output)

    def feed(self, data: bytes) -> list[Delta]:
        """The deltas that these bytes of an event stream complete."""
        deltas: list[Delta] = []
        try:
            events = self._events.feed(data)
        except EventTooLargeError as error:
            self.failure = str(error)
            return deltas
        for event in events:
            self._read(event, deltas)
            if self.over:
                break
        return deltas

    def close(self, head: bytes) -> list[Delta]:
        """The deltas of what is left at the end of an event stream that began with `head`.

        Half an event counts as nothing; that the answer is not complete tells more.
        """
        deltas: list[Delta] = []
        if self.over:
            return deltas
        for event in self._events.close():
            self._read(event, deltas)
        self.failure = None
        if head.strip() and not self._read_any:
            self.failure = f"this is not an event stream: {glimpse(head)}"
        return deltas

    def whole(self, body: bytes) -> list[Delta]:
        """The deltas of an answer that came in one piece, whichever of the two forms it has."""
        if not is_json(body):
            deltas = self.feed(body)
            return deltas + self.close(body)
        deltas = []
        self._read(body, deltas)
        if self.error is None and self.failure is None:
            self.done = self._read_any
            self.failure = None if self.done else f"this is not a chat completion: {glimpse(body)}"
        return deltas

    def _read(self, event: bytes, deltas: list[Delta]) -> None:
        try:
            chunk = _decode_chunk(event)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if event.strip() == _DONE:
                self.done = True
            else:
                self.failure = f"this is not a chat completion: {glimpse(event)}"
            return
        choices = chunk.choices
        if choices:
            self._read_any = True
            self.model = chunk.model or self.model
            for choice in choices:
                if choice.index == 0:
                    self._read_choice(choice, deltas)
        if chunk.usage is not None:
            self.usage = chunk.usage.read() or self.usage
        if chunk.error:
            self.error = chunk.error
        elif not choices and chunk.usage is None:
            self.error = _other_error(event)

    def _read_choice(self, choice: _Choice, deltas: list[Delta]) -> None:
        delta = choice.delta or choice.message
        if delta is not None:
            text = delta.content
            if not text or not isinstance(text, str):
                text = delta.text()
            if text:
                self.started = True
                self._output.append(text)
                deltas.append(TextDelta(text))
            if delta.tool_calls:
                self.started = self._called = True
                for call in delta.tool_calls:
                    piece = call.read()
                    self._output.append((piece.name or "") + piece.arguments)
                    deltas.append(piece)
            elif delta.reasoning_content or delta.reasoning:
                self.started = True
        if choice.finish_reason:
            self.finish = choice.finish_reason
        if choice.usage is not None:
            self.usage = choice.usage.read() or self.usage


def is_json(body: bytes) -> bool:
    """Whether this begins like a JSON object; no event stream does."""
    return body[:64].lstrip().startswith(b"{")


def glimpse(data: bytes) -> str:
    """The beginning of what came instead of an answer, on one line."""
    text = " ".join(data[:400].decode("utf-8", "replace").split())[:200]
    if text.lower().startswith(("<!doctype", "<html")):
        return f"an HTML page; is the base URL right? {text}"
    return text or "nothing at all"


def _other_error(data: bytes) -> object:
    """The error of servers that put it at the top level, or None."""
    document = msgspec.json.decode(data)
    is_error = isinstance(document, dict) and "error" in (document.get("object"), document.get("type"))
    return document if is_error else None
