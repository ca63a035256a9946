"""The provider's own record of what it was asked and what it sent: the other side of every ledger."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from time import time
from typing import Any, Literal

import msgspec

from aiforge.core.types import Usage
from aiforge.testing.responses import messages_of
from aiforge.testing.text import text_of

CALL_ID_HEADER = "x-aiforge-call-id"
_SECRET_HEADERS = frozenset({"authorization", "api-key", "x-api-key", "cookie", "proxy-authorization"})
_MILLION = Decimal(1_000_000)

End = Literal["running", "answered", "refused", "cut", "dropped", "closed", "stopped"]
"""How a call ended. `answered`: sent whole; `refused`: an error status or an error in the stream; `cut`:
broken off by us; `dropped`: connection closed instead of an answer; `closed`: the client went away first;
`stopped`: the server was stopped."""


class RecordedCall(msgspec.Struct, kw_only=True, gc=False):
    """One request for an answer. Times are Unix seconds, `number` counts from 1."""

    number: int
    arrived: float
    headers: dict[str, str]
    """Names in lower case; secrets redacted."""
    raw: bytes
    """The request's body."""
    path: str = "/v1/chat/completions"
    """Or `/v1/responses`."""
    concurrency: int = 1
    """How many calls ran when this one arrived, itself included."""
    model: str = ""
    stream: bool = False
    status: int | None = None
    """None when no headers were sent."""
    chunks: int = 0
    """Chunks with text, tool calls or raw bytes that were sent."""
    reported: Usage | None = None
    """The usage the client was told, None when it was told none."""
    used: Usage | None = None
    """The usage there was, None for a call that no model worked on."""
    fault: str | None = None
    end: End = "running"
    closed: float | None = None

    @property
    def call_id(self) -> str | None:
        """What the client sent as `x-aiforge-call-id`."""
        return self.headers.get(CALL_ID_HEADER)

    @property
    def body(self) -> Any:
        """The request's body as JSON; None when it is none."""
        try:
            return msgspec.json.decode(self.raw)
        except msgspec.DecodeError:
            return None

    @property
    def messages(self) -> list[dict[str, Any]]:
        body = self.body
        if isinstance(body, dict) and self.path == "/v1/responses":
            return messages_of(body)
        messages = body.get("messages") if isinstance(body, dict) else None
        return messages if isinstance(messages, list) else []

    @property
    def question(self) -> str:
        """The text of the last user message."""
        return last_question(self.messages)

    def as_dict(self) -> dict[str, Any]:
        """The call as `GET /calls` shows it."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "raw"}
        return fields | {"call_id": self.call_id, "body": self.body}


def last_question(messages: Iterable[Any]) -> str:
    """The text of the last user message, empty when there is none."""
    texts = [text_of(m.get("content")) for m in messages if isinstance(m, dict) and m.get("role") == "user"]
    return texts[-1] if texts else ""


def shown_headers(raw_headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers for the log: lower-case names, no secrets."""
    shown = {}
    for raw_name, value in raw_headers:
        name = raw_name.decode("latin-1").lower()
        shown[name] = "[redacted]" if name in _SECRET_HEADERS else value.decode("utf-8", "replace")
    return shown


class CallLog:
    """Every call in order of arrival; `keep` bounds how many are held, never what the totals count.

    Written by the server's thread, read and waited on from any other. A call is finished here before its
    client can read the end of its answer.
    """

    def __init__(self, keep: int | None = None) -> None:
        self._calls: deque[RecordedCall] = deque(maxlen=keep)
        self._condition = threading.Condition()
        self._waiting = 0
        self.clear()

    def clear(self) -> None:
        """Forget all calls and totals; calls that still run are not counted any more."""
        self._calls.clear()
        self.total = 0
        self.running = 0
        self.peak_concurrency = 0
        self.reported = Usage()
        """The sum of what clients were told."""
        self.untold = Usage()
        """The sum of what was used by calls whose client was told nothing."""
        self._open: set[int] = set()

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[RecordedCall]:
        return iter(tuple(self._calls))

    def __getitem__(self, index: int) -> RecordedCall:
        return self._calls[index]

    def start(self, headers: dict[str, str], raw: bytes, path: str) -> RecordedCall:
        self.total += 1
        self.running += 1
        self.peak_concurrency = max(self.peak_concurrency, self.running)
        call = RecordedCall(
            number=self.total,
            arrived=time(),
            headers=headers,
            raw=raw,
            path=path,
            concurrency=self.running,
        )
        self._calls.append(call)
        self._open.add(id(call))
        self.changed()
        return call

    def finish(self, call: RecordedCall, end: End) -> None:
        call.end = end
        call.closed = time()
        if id(call) in self._open:
            self._open.remove(id(call))
            self.running -= 1
            if call.reported is not None:
                self.reported += call.reported
            elif call.used is not None:
                self.untold += call.used
        self.changed()

    def changed(self) -> None:
        """Wake those who wait for a condition."""
        if self._waiting:
            with self._condition:
                self._condition.notify_all()

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether the condition came true in time; it is looked at after each change of any call."""
        with self._condition:
            self._waiting += 1
            try:
                return self._condition.wait_for(condition, seconds)
            finally:
                self._waiting -= 1

    def cost(
        self,
        input_price: Decimal,
        output_price: Decimal,
        cached_price: Decimal | None = None,
        *,
        untold: bool = False,
    ) -> Decimal:
        """USD of all calls at these prices per million tokens, exact.

        `untold` adds what was used by calls whose client was told nothing.
        """
        usage = self.reported + self.untold if untold else self.reported
        cached = usage.cached_tokens if cached_price is not None else 0
        return (
            (usage.input_tokens - cached) * input_price
            + cached * (cached_price or Decimal(0))
            + usage.output_tokens * output_price
        ) / _MILLION
