"""Event streams of turns and batches: reading them, and going on where one broke off.

The service numbers the events of a turn, and the rows of a batch. Whoever comes back with the last number in
`Last-Event-ID` gets exactly the rest, so a broken connection costs a reader nothing.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Final, Generic, TypeVar, get_args

import httpx
import msgspec

from aiforge.client import batch_calls, turn_calls
from aiforge.client.call import CONNECT_SECONDS
from aiforge.client.errors import (
    APIError,
    ClientError,
    ProtocolError,
    UnreachableError,
    from_response,
    from_transport,
)
from aiforge.client.results import Batch, Row
from aiforge.core import events
from aiforge.core.events import TERMINAL_EVENTS, Event, RequiresAction

SILENCE_SECONDS: Final = 45.0
"""The service says something at least every 15 s; three misses mean that the connection is dead."""
PATIENCE_SECONDS: Final = 60.0
"""How long connections may fail one after the other."""
STEADY_SECONDS: Final = 10.0
"""A connection that lasted so long worked, even if the turn said nothing."""
FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 2.0
TIMEOUT: Final = httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS)

T = TypeVar("T")
_KNOWN: Final = frozenset(str(kind.__struct_config__.tag).encode() for kind in get_args(Event))
_row: Final = msgspec.json.Decoder(Row)
_batch: Final = msgspec.json.Decoder(Batch)


class Frames:
    """Server-sent events from bytes that were cut anywhere, as their fields."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[bytes, bytes] = {}

    def feed(self, chunk: bytes) -> list[dict[bytes, bytes]]:
        """The events with data that `chunk` completes."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        found = []
        for line in lines:
            name, _, value = line.rstrip(b"\r").partition(b":")
            if name:
                self._fields[name] = value.removeprefix(b" ")
            elif not line.strip():
                fields, self._fields = self._fields, {}
                if b"data" in fields:
                    found.append(fields)
        return found


class EventLines:
    """A turn's events from bytes that were cut anywhere: (number, event) pairs."""

    def __init__(self) -> None:
        self._frames = Frames()

    def feed(self, chunk: bytes) -> list[tuple[int, Event]]:
        """The events that `chunk` completes; raises ProtocolError for what is no event of ours."""
        found = self._frames.feed(chunk)
        return [_event(fields) for fields in found if fields.get(b"event") in _KNOWN]


def _event(fields: dict[bytes, bytes]) -> tuple[int, Event]:
    try:
        return int(fields[b"id"]), events.decode(fields[b"data"])
    except (KeyError, ValueError, msgspec.MsgspecError) as error:
        raise ProtocolError(f"the stream holds something unexpected: {error}") from None


class Resuming(ABC, Generic[T]):
    """One reader's way through a stream, over as many connections as it takes."""

    def __init__(self, path: str, after: int, base_url: str) -> None:
        self.path = path
        self.over = False
        self._after = after
        self._base_url = base_url
        self._was_connected = False
        self._opened_at = 0.0
        self._failing_since: float | None = None
        self._pause = FIRST_PAUSE_SECONDS

    def headers(self) -> dict[str, str]:
        """For the next connection."""
        self._begin()
        self._opened_at = time.monotonic()
        return {"Accept": "text/event-stream", "Last-Event-ID": str(self._after)}

    @abstractmethod
    def feed(self, chunk: bytes) -> list[tuple[int, T]]:
        """The new events; one that was given out already is skipped."""

    @abstractmethod
    def _begin(self) -> None:
        """What comes next is the begin of a response."""

    def closed(self) -> None:
        """The response has ended."""

    def refused(self, response: httpx.Response) -> None:
        """A reply that is no stream; raises unless it can pass and the stream was open before."""
        error = from_response(response)
        if not (isinstance(error, APIError) and error.retryable):
            raise error
        self._fails(error)

    def broke(self, error: httpx.HTTPError) -> None:
        """A connection that failed; raises UnreachableError when it is no use to go on."""
        self.closed()
        if not self.over:
            self._fails(from_transport(error, self._base_url))

    def pause(self) -> float:
        """Seconds until the next connection; raises when none gave anything for too long."""
        self._fails(UnreachableError(f"{self._base_url} ends the stream before its end"))
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return pause

    def _works(self) -> None:
        self._failing_since = None
        self._pause = FIRST_PAUSE_SECONDS

    def _fails(self, error: ClientError) -> None:
        now = time.monotonic()
        if now - self._opened_at > STEADY_SECONDS:
            self._works()
        self._failing_since = self._failing_since or now
        if not self._was_connected or now - self._failing_since > PATIENCE_SECONDS:
            raise error


class Reading(Resuming[Event]):
    """Through a turn's events."""

    def __init__(self, turn_id: str, after: int, base_url: str) -> None:
        super().__init__(turn_calls.events(turn_id), after, base_url)
        self._asks = False
        self._begin()

    def _begin(self) -> None:
        self._lines = EventLines()

    def feed(self, chunk: bytes) -> list[tuple[int, Event]]:
        """The new events; one that was given out already is skipped."""
        self._was_connected = True
        new = [
            pair
            for pair in self._lines.feed(chunk)
            if pair[0] > self._after or isinstance(pair[1], TERMINAL_EVENTS)
        ]
        if new:
            self._works()
            self._after, last = new[-1]
            self.over = isinstance(last, TERMINAL_EVENTS)
            self._asks = isinstance(last, RequiresAction)
        return new

    def closed(self) -> None:
        """The response has ended. Behind a question that means that it waits for an answer."""
        self.over = self.over or self._asks


class BatchReading(Resuming[Row | Batch]):
    """Through a batch's rows and its progress, which has no number of its own."""

    def __init__(self, batch_id: str, after: int, base_url: str) -> None:
        super().__init__(batch_calls.events(batch_id), after, base_url)
        self._begin()

    def _begin(self) -> None:
        self._frames = Frames()

    def feed(self, chunk: bytes) -> list[tuple[int, Row | Batch]]:
        self._was_connected = True
        new = [pair for fields in self._frames.feed(chunk) for pair in self._read(fields)]
        if new:
            self._works()
        return new

    def _read(self, fields: dict[bytes, bytes]) -> list[tuple[int, Row | Batch]]:
        name, data = fields.get(b"event"), fields[b"data"]
        try:
            if name == b"row":
                number, row = int(fields[b"id"]), _row.decode(data)
                known, self._after = number <= self._after, max(number, self._after)
                return [] if known else [(number, row)]
            if name in (b"progress", b"done"):
                self.over = name == b"done"
                return [(self._after, _batch.decode(data))]
        except (KeyError, ValueError, msgspec.MsgspecError) as error:
            raise ProtocolError(f"the stream holds something unexpected: {error}") from None
        return []
