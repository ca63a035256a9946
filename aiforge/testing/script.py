"""What a provider is told to answer: one `Reply` a call, in Python or as JSON over `POST /script`.

A reply is a few plain fields; what happens inside a stream is a list of steps. So

    Reply(text="Hello")                                    a whole answer, cut into words
    Reply(chunks=["Hel", Silence(0.5), "lo"], gap=0.01)     exact chunks, a pause between two of them
    Reply(chunks=["Hel", Cut("reset")])                     a connection that breaks after one chunk
    Reply(tool_calls=[ToolCall("add", {"a": 1})])           a tool call in OpenAI's usual fragments
    rate_limited(2), failure(503)                           errors with the headers that go with them
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from time import time
from typing import Any, Literal, TypeAlias

import msgspec

from aiforge.core.types import Usage

CutKind = Literal["reset", "close", "end"]
"""How an answer breaks off: `reset` is a TCP reset, `close` a clean close in the middle of the HTTP
body, `end` an HTTP body that ends properly while the answer in it does not."""

UsageIn = Literal["asked", "last", "choice", "cumulative", "none"]
"""Where a stream reports usage. `asked`: in a last chunk with empty choices if the request has
`stream_options.include_usage`, as OpenAI does; `last`: there, asked or not; `choice`: in the chunk that
carries the finish reason; `cumulative`: in every chunk, growing; `none`: nowhere, also when not streamed."""

ToolShape = Literal[
    "openai",
    "whole",
    "together",
    "interleaved",
    "same_index",
    "no_index",
    "repeated_ids",
    "null_arguments",
    "empty_arguments",
]
"""How tool calls are cut into deltas; `aiforge.testing.shapes.tool_deltas` says what each one is."""

Ending = Literal["done", "finish", "none"]
"""What follows the steps of a stream: finish reason, usage and `[DONE]`; the first two; or nothing."""

RetryForm = Literal["both", "seconds", "ms", "date", "none"]


class Raw(msgspec.Struct, frozen=True, tag="raw"):
    """Bytes of the stream exactly as given (base64 in JSON); they may end inside a character.

    A stream that begins with them has no chunk with the role before them.
    """

    data: bytes


class Delta(msgspec.Struct, frozen=True, tag="delta"):
    """A chunk with this `delta` object in its only choice."""

    delta: dict[str, Any]


class Report(msgspec.Struct, frozen=True, tag="report"):
    """A chunk with empty choices that reports this usage, wherever it stands in the stream."""

    usage: Usage


class Silence(msgspec.Struct, frozen=True, tag="silence"):
    """Nothing is sent for so many seconds; None is until the client goes away."""

    seconds: float | None = None


class Gate(msgspec.Struct, frozen=True, tag="gate"):
    """The stream waits until `FakeProvider.open(name)` or `POST /open {"gate": name}`."""

    name: str


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    """The answer breaks off here.

    `after` is how many seconds later: a reset throws away what the client has not read yet.
    """

    how: CutKind = "reset"
    after: float = 0.02


class Fail(msgspec.Struct, frozen=True, tag="fail"):
    """An error inside the stream: `data: {"error": …}`, then its end. Not streamed, it is a 500."""

    message: str = "The server had an error while processing your request."
    code: str = "server_error"


Step: TypeAlias = str | Raw | Delta | Report | Silence | Gate | Cut | Fail
"""One step of an answer; a string is a chunk with that text."""


class ToolCall(msgspec.Struct, frozen=True):
    """A call the model makes. Arguments are an object or, to be wrong on purpose, any text."""

    name: str
    arguments: dict[str, Any] | str = msgspec.field(default_factory=dict)
    id: str | None = None
    """None: `call_1`, `call_2`, … in the order of the reply."""

    def arguments_text(self) -> str:
        if isinstance(self.arguments, str):
            return self.arguments
        return msgspec.json.encode(self.arguments).decode()


class Reply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one call is answered with. Durations are in seconds.

    Raises ValueError when more than one of `text`, `chunks` and `echo` is given.
    """

    text: str | None = None
    """The answer, cut into words when streamed."""
    chunks: Sequence[Step] | None = None
    echo: bool = False
    """The answer is the received message list as JSON."""
    tool_calls: Sequence[ToolCall] = ()
    """Come after the text."""
    tool_shape: ToolShape = "openai"
    finish_reason: str | None = None
    """None: `tool_calls` when there are any, else `stop`."""
    ending: Ending = "done"

    usage: Usage | None = None
    """None: counted."""
    usage_in: UsageIn = "asked"

    delay: float | None = None
    """Before the headers; None is the provider's latency."""
    gap: float | Sequence[float] | None = None
    """Between chunks; several are taken in turn; None is the provider's gap."""
    piece: int | None = None
    """The stream's bytes are sent so many at a time."""
    split_at: Sequence[int] = ()
    """The stream's bytes are cut at these offsets."""

    instead: Literal["silence", "reset", "close"] | None = None
    """What happens in place of an answer: no byte is ever sent, or the connection is dropped."""
    status: int = 200
    error: Mapping[str, Any] | None = None
    """The `error` object of a status other than 200; None is one that fits."""
    body: str | None = None
    """The whole body as it is, for any status (a proxy's HTML page, broken JSON)."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    fault: str | None = None
    """A name for the call log."""

    def __post_init__(self) -> None:
        if (self.text is not None) + (self.chunks is not None) + self.echo > 1:
            raise ValueError("a reply has one of text, chunks and echo")
        if self.piece is not None and self.piece < 1:
            raise ValueError("piece must be at least 1 byte")
        if not 200 <= self.status <= 599:
            raise ValueError("status must be from 200 to 599")


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reply for the calls whose last user message contains `contains`, the first `times` of them."""

    contains: str
    reply: Reply
    times: int | None = None


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /script`: replies join the queue, rules the rules; `default` replaces the default."""

    replies: Sequence[Reply] = ()
    rules: Sequence[Rule] = ()
    default: Reply | None = None


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Faults that strike calls without a script, the same ones for the same seed and order of calls.

    The rates are shares of the calls (0.05 is 5 %); the first `cut` answers that are otherwise well
    break off in their middle; `retry_after` seconds are what a 429 asks for.
    """

    rate_429: float = 0.0
    rate_500: float = 0.0
    cut: int = 0
    retry_after: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.rate_429 <= 1 or not 0 <= self.rate_500 <= 1 or self.rate_429 + self.rate_500 > 1:
            raise ValueError(
                "rate_429 and rate_500 are shares of the calls: each from 0 to 1, together at most 1"
            )


def rate_limited(retry_after: float = 1.0, *, form: RetryForm = "both", fault: str | None = None) -> Reply:
    """A 429 that asks for so many seconds: as whole seconds, milliseconds, both, a date, or not at all."""
    headers: dict[str, str] = {}
    if form in ("both", "seconds"):
        headers["retry-after"] = str(math.ceil(retry_after))
    if form in ("both", "ms"):
        headers["retry-after-ms"] = str(round(retry_after * 1000))
    if form == "date":
        headers["retry-after"] = formatdate(time() + retry_after, usegmt=True)
    return Reply(status=429, headers=headers, delay=0, fault=fault)


def failure(status: int = 500, message: str | None = None, *, fault: str | None = None) -> Reply:
    """An error of this status in OpenAI's form."""
    error = None if message is None else {**error_object(status), "message": message}
    return Reply(status=status, error=error, fault=fault)


_ERRORS: dict[int, tuple[str, str, str | None]] = {
    400: ("The request is malformed.", "invalid_request_error", None),
    401: ("Incorrect API key provided.", "invalid_request_error", "invalid_api_key"),
    403: ("You are not allowed to do this.", "invalid_request_error", "permission_denied"),
    404: ("There is no such thing.", "invalid_request_error", "not_found"),
    429: ("Rate limit reached.", "requests", "rate_limit_exceeded"),
    503: ("The engine is currently overloaded.", "server_error", "overloaded"),
}


def error_object(status: int) -> dict[str, Any]:
    """The `error` object that fits a status."""
    message, kind, code = _ERRORS.get(
        status, ("The server had an error while processing your request.", "server_error", "server_error")
    )
    return {"message": message, "type": kind, "param": None, "code": code}
