"""A turn's events as a Server-Sent Events response.

FastAPI's own event stream costs a pydantic model and two queue hops an event and first speaks after
15 s of silence; this one sends whatever is ready in one write, speaks at once, and notices at once
that its reader left or that the process wants to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from aiforge.core import events
from aiforge.core.events import Event, RequiresAction
from aiforge.core.texts import one_line
from api.stopping import stop
from worker.contract.errors import ContractError

MEDIA_TYPE: Final = "text/event-stream"
PING: Final = b": ping\n\n"
_LOST: Final = b": the store does not answer; come back with Last-Event-ID\n\n"
_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_FULL: Final = 256 * 1024
"""Bytes that may wait for a slow reader before its subscription is paused."""


def encode(sequence: int, event: Event) -> bytes:
    """One event in SSE's form; its data is one line for every reader."""
    data = one_line(events.encode(event))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (sequence, events.name(event).encode(), data)


class Streams:
    """The event streams of this process, and the word that it is time to end."""

    def __init__(self) -> None:
        self._open: set[EventStream] = set()
        self.draining = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, stream: EventStream) -> None:
        self._open.add(stream)
        if self.draining.is_set():
            stream.stop()

    def discard(self, stream: EventStream) -> None:
        self._open.discard(stream)

    def drain(self) -> None:
        """End every stream and every wait; readers come back with their last id."""
        self.draining.set()
        for stream in self._open:
            stream.stop()


class EventStream(Response):
    """Sends events until the last one, until the reader leaves or until the process drains."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        source: AsyncIterator[tuple[int, Any]],
        *,
        streams: Streams,
        ping_seconds: float,
        waits: Callable[[str], Awaitable[bool]] | None = None,
        left: Callable[[], Awaitable[object]] | None = None,
        headers: Mapping[str, str] | None = None,
        write: Callable[[int, Any], bytes] = encode,
    ) -> None:
        """`waits` tells whether a question is open; `left` is called when the reader leaves first."""
        self.status_code = 200
        self.background = None
        self.init_headers({**_HEADERS, **(headers or {})})
        self._source = source
        self._write = write
        self._streams = streams
        self._ping_seconds = ping_seconds
        self._waits = waits
        self._left = left
        self._gone = False
        self._ready = bytearray(PING)
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._over = False

    def stop(self) -> None:
        """Send what is ready and end the response."""
        self._over = True
        self._wake.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reading = asyncio.create_task(self._read())
        watching = asyncio.create_task(self._watch(receive))
        self._streams.add(self)
        try:
            await self._send(send)
        except OSError:
            self._gone = True
        finally:
            self._streams.discard(self)
            await stop(reading, watching)
        if not reading.cancelled():
            reading.result()
        if self._left is not None and self._gone:
            await self._left()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while True:
            over, chunk, self._ready = self._over, bytes(self._ready), bytearray()
            self._room.set()
            if chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if over:
                break
            try:
                async with asyncio.timeout(self._ping_seconds):
                    await self._wake.wait()
            except TimeoutError:
                self._ready += PING
            self._wake.clear()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read(self) -> None:
        """Fill `_ready`; ends after a terminal event, or a question that nobody has answered yet."""
        try:
            async for sequence, event in self._source:
                self._ready += self._write(sequence, event)
                self._wake.set()
                waits = self._waits if isinstance(event, RequiresAction) else None
                if waits is not None and await waits(event.question_id):
                    break
                if len(self._ready) > _FULL:
                    self._room.clear()
                    await self._room.wait()
        except ContractError:
            self._ready += _LOST
        finally:
            self.stop()
            if isinstance(self._source, AsyncGenerator):
                await self._source.aclose()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        # A reader whose stream we end ourselves, because the store is away or the process drains, comes back.
        self._gone = not self._over
        self.stop()
