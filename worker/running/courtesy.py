"""Batches make way for chats: while chats are about, no more slices go on than the event loop copes with.

A loop that is always at work is late for everything, and a chat waits at each of its steps. With fewer slices
under way the items hardly take longer in all, they only wait elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Final

ABOUT_SECONDS: Final = 5.0
"""How long after the last chat another one is expected."""
LOOK_SECONDS: Final = 0.01
"""How often it is looked whether the loop is at work."""
AT_WORK_SECONDS: Final = 0.0015
"""A loop that comes this late was at work on something else."""
RECENT: Final = 0.05
"""What a look counts beside those before it: about twenty looks are remembered."""
BUSY: Final = 0.6
"""A loop that more looks than this find at work has too much to do."""
LEAST: Final = 4
"""Slices that go on however busy the loop is: batches advance."""
FEWER: Final = 0.98
"""To what share their number falls at a look while the loop has too much to do."""
MORE: Final = 0.5
"""By how much it grows at every other look."""


class Courtesy:
    """Of one event loop; `chat` stands around a chat, `slot` around what a slot does for batches."""

    def __init__(self) -> None:
        self._chats = 0
        self._last_chat = -math.inf
        self.under_way = 0
        """Slots that are not waiting."""
        self._most = math.inf
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._looking: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def chat(self) -> Iterator[None]:
        self._chats += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="courtesy")
        try:
            yield
        finally:
            self._chats -= 1
            self._last_chat = asyncio.get_running_loop().time()

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Waits for its turn before it begins."""
        try:
            await self._enter()
            yield
        finally:
            self._leave()

    async def between(self) -> None:
        """Of a slot that is between two slices: let others go on where there are too many."""
        if self._waiting or self.under_way > self._most:
            self._leave()
            await self._enter()

    async def _enter(self) -> None:
        """A slot that is cancelled while it waits counts, too: it leaves like all others."""
        if self.under_way < self._most and not self._waiting:
            self.under_way += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        finally:
            if place.cancelled():
                self.under_way += 1

    def _leave(self) -> None:
        self.under_way -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self.under_way < self._most:
            place = self._waiting.popleft()
            if not place.done():
                self.under_way += 1
                place.set_result(None)

    async def _look(self) -> None:
        """Find how many slices the loop copes with, for as long as chats are about."""
        loop, at_work = asyncio.get_running_loop(), 0.0
        try:
            while self._chats > 0 or loop.time() - self._last_chat < ABOUT_SECONDS:
                due = loop.time() + LOOK_SECONDS
                await asyncio.sleep(LOOK_SECONDS)
                at_work += RECENT * ((loop.time() - due > AT_WORK_SECONDS) - at_work)
                if at_work > BUSY:
                    self._most = max(LEAST, min(self._most, self.under_way) * FEWER)
                else:
                    self._most += MORE
                self._let_in()
        finally:
            self._most = math.inf
            self._let_in()
