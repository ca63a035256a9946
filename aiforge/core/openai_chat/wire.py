"""OpenAI's chat completion format as typed structs, and what it means in deltas.

Only the fields that are used are declared: msgspec skips the others without building them. Types
are as wide as compatible servers are careless, so that an answer is not lost to a detail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from aiforge.core.deltas import CallParams, Delta, TextDelta, ToolCallDelta
from aiforge.core.openai_chat import halves
from aiforge.core.openai_chat.sse import EventReader, EventTooLargeError
from aiforge.core.tokens import believed
from aiforge.core.types import Usage

_NO_TOKENS: Final = -1


def _usage(reported: Any) -> Usage | None:
    """What was reported, zeros included; None if nothing was, or nothing that can be, or one half of it
    without the total: the other half is not known, which is not zero."""
    if not isinstance(reported, dict):
        return None
    read, written, total = (
        _tokens(reported.get(f"{name}_tokens")) for name in ("prompt", "completion", "total")
    )
    known = written if read is None else read
    rest = None if total is None or known is None else total - known
    read, written = (rest if count is None else count for count in (read, written))
    if read is None or written is None:
        return None
    details, output = (_mapping(reported.get(f"{name}_tokens_details")) for name in ("prompt", "completion"))
    cached = _tokens(details.get("cached_tokens")) or _tokens(reported.get("prompt_cache_hit_tokens"))
    return believed(
        Usage(
            input_tokens=read,
            output_tokens=written,
            cached_tokens=cached or 0,
            cache_write_tokens=_tokens(details.get("cache_write_tokens")) or 0,
            reasoning_tokens=_tokens(output.get("reasoning_tokens")) or 0,
            input_audio_tokens=_tokens(details.get("audio_tokens")) or 0,
            output_audio_tokens=_tokens(output.get("audio_tokens")) or 0,
        )
    )


def _tokens(value: Any) -> int | None:
    """A number of tokens; None where none was given, below 0 where what was given is no whole number."""
    return None if value is None else _NO_TOKENS if (count := _count(value)) is None else count


def _count(value: Any) -> int | None:
    """A whole number in whatever form; None where it is none."""
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        return None
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


class _Function(msgspec.Struct):
    name: Any = None
    arguments: Any = None


class _ToolCall(msgspec.Struct):
    index: Any = None
    id: Any = None
    function: _Function | None = None

    def read(self) -> ToolCallDelta:
        function = self.function or _Function()
        arguments = "" if function.arguments is None else function.arguments
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        name = function.name if isinstance(function.name, str) else None
        return ToolCallDelta(_count(self.index), None if self.id is None else str(self.id), name, arguments)


class _Message(msgspec.Struct):
    """A streamed `delta` or a whole `message`."""

    content: Any = None
    refusal: Any = None
    tool_calls: list[_ToolCall | None] | dict[str, Any] | None = None
    reasoning_content: Any = None
    reasoning: Any = None

    def text(self) -> str:
        content = self.content
        if isinstance(content, list):
            texts = (part.get("text") if isinstance(part, dict) else part for part in content)
            content = "".join(text for text in texts if isinstance(text, str))
        said = (text for text in (content, self.refusal) if isinstance(text, str))
        return next((text for text in said if text), "")


class _Choice(msgspec.Struct):
    index: Any = 0
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: Any = None
    usage: Any = None


class _Chunk(msgspec.Struct):
    """One event of a stream, or a whole reply."""

    choices: list[_Choice] | None = None
    usage: Any = None
    model: Any = None
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
        "_halves",
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
        self._halves: halves.Halves | None = None
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
                return
            halved = self._decode_halved(event)
            if halved is None:
                self.failure = f"this is not a chat completion: {glimpse(event)}"
                return
            chunk = halved
        choices = chunk.choices
        if choices:
            self._read_any = True
            self.model = chunk.model if chunk.model and isinstance(chunk.model, str) else self.model
            for choice in choices:
                if not choice.index:
                    self._read_choice(choice, deltas)
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage) or self.usage
        if chunk.error:
            self.error = chunk.error
        elif not choices and chunk.usage is None:
            self.error = _other_error(event)

    def _decode_halved(self, event: bytes) -> _Chunk | None:
        """An event that cuts a character in two, None for what is no event."""
        value = halves.decode(event)
        if value is None:
            return None
        self._halves = self._halves or halves.Halves()
        try:
            return msgspec.convert(value, _Chunk, strict=False)
        except msgspec.ValidationError:
            return None

    def _read_choice(self, choice: _Choice, deltas: list[Delta]) -> None:
        delta = choice.delta or choice.message
        if delta is not None:
            text = delta.content
            if not text or not isinstance(text, str):
                text = delta.text()
            if self._halves is not None:
                text = self._halves.join("text", text)
                if choice.finish_reason:
                    text += self._halves.rest("text")
            if text:
                self.started = True
                self._output.append(text)
                deltas.append(TextDelta(text))
            if delta.tool_calls and isinstance(delta.tool_calls, list):
                self.started = self._called = True
                for call in filter(None, delta.tool_calls):
                    piece = call.read()
                    if self._halves is not None:
                        whole = self._halves.join(call.index, piece.arguments)
                        piece = msgspec.structs.replace(piece, arguments=whole)
                    self._output.append((piece.name or "") + piece.arguments)
                    deltas.append(piece)
            elif delta.reasoning_content or delta.reasoning:
                self.started = True
        if choice.finish_reason:
            self.finish = str(choice.finish_reason)
        if choice.usage is not None:
            self.usage = _usage(choice.usage) or self.usage


class _Reported(msgspec.Struct):
    usage: Any = None


def usage_of(body: bytes) -> Usage | None:
    """What a whole reply of one of OpenAI's endpoints says that it cost; DecodeError unless it is an object.

    Responses count `input_tokens`, completions `prompt_tokens`.
    """
    reported = msgspec.json.decode(body, type=_Reported).usage
    if isinstance(reported, dict) and "prompt_tokens" not in reported:
        for ours, theirs in (("prompt", "input"), ("completion", "output")):
            for ending in ("tokens", "tokens_details"):
                reported[f"{ours}_{ending}"] = reported.get(f"{theirs}_{ending}")
    return _usage(reported)


class _Ended(msgspec.Struct):
    status: Any = None
    error: Any = None
    choices: Any = None
    output: Any = None


def failed_response(body: bytes) -> object | None:
    """The error of a reply that is no answer, because the provider gave it up or has nothing but an error to
    say; None for all else."""
    try:
        ended = msgspec.json.decode(body, type=_Ended)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if ended.status in ("failed", "cancelled"):
        return ended.error or "no text"
    return None if ended.choices or ended.output else ended.error or None


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
    document = halves.decode(data) or msgspec.json.decode(data)
    is_error = isinstance(document, dict) and "error" in (document.get("object"), document.get("type"))
    return document if is_error else None
