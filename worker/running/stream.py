"""Sends the events of all running turns to Redis, those of a few milliseconds in one pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiforge.core.events import Event, encode
from worker.contract.claims import Claim
from worker.contract.errors import Unavailable
from worker.contract.store import TurnStore
from worker.loop import keep_up

FLUSH_SECONDS: Final = 0.015
"""How long events wait for company; a stream's first one goes at once."""
EVENTS_PER_CALL: Final = 1_000
BEYOND: Final = 1 << 52
"""The position of one who does not know what another process said: nothing of it is said again."""


class Stream:
    """The events of one attempt, in order; `sent` of them are in the log."""

    __slots__ = ("claim", "lost", "on_lost", "pending", "sent")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.on_lost: Callable[[], None] = lambda: None
        self.pending: list[bytes] = []
        self.sent = 0
        self.lost = False


class Flusher:
    """One per process; lives on the loop that runs the turns."""

    def __init__(self, store: TurnStore) -> None:
        self._store = store
        self._dirty: dict[Stream, None] = {}
        self._wanted = asyncio.Event()
        self._urgent = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._task = asyncio.get_running_loop().create_task(keep_up("flush", self._run), name="flusher")

    def push(self, stream: Stream, event: Event) -> None:
        """Queue an event; never blocks."""
        if stream.lost:
            return
        if not stream.sent and not stream.pending:
            self._urgent.set()
        stream.pending.append(encode(event))
        if stream not in self._dirty:
            self._dirty[stream] = None
            self._wanted.set()

    async def take(self, stream: Stream) -> list[bytes]:
        """What of a stream has not been sent; it is the caller's from now on."""
        self._dirty.pop(stream, None)
        async with self._flushing:
            rest, stream.pending = stream.pending, []
            return rest

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            if not self._urgent.is_set():
                await _wait(self._urgent, FLUSH_SECONDS)
            self._urgent.clear()
            self._wanted.clear()
            streams, self._dirty = list(self._dirty), {}
            async with self._flushing:
                await self._flush([stream for stream in streams if stream.pending])

    async def _flush(self, streams: list[Stream]) -> None:
        sizes = [min(len(stream.pending), EVENTS_PER_CALL) for stream in streams]
        calls = [
            self._store.append_call(stream.claim, stream.sent, stream.pending[:size])
            for stream, size in zip(streams, sizes, strict=True)
        ]
        try:
            replies = await self._store.connection.run_many(calls)
        except Unavailable:
            self._again(streams)
            return
        except Exception:
            self._again(streams)
            raise
        for stream, size, reply in zip(streams, sizes, replies, strict=True):
            if reply == 1:
                del stream.pending[:size]
                stream.sent += size
            else:
                stream.lost = True
                stream.pending.clear()
                stream.on_lost()
        self._again([stream for stream in streams if stream.pending])

    def _again(self, streams: list[Stream]) -> None:
        if streams:
            self._dirty.update(dict.fromkeys(streams))
            self._wanted.set()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
