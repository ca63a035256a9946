"""Batches make way for chats: while chats are about, the items of a worker begin one after the other.

A chat goes through five steps to its first token and waits at each for whatever the event loop has to do.
Items that begin together come back together, too, and the loop has dozens of them to see to at once, again
and again. Items that begin one by one come back one by one, and a chat waits for one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Iterator
from typing import Final

ABOUT_SECONDS: Final = 5.0
"""How long after the last chat another one is expected."""
APART_SECONDS: Final = 0.001
"""How long after an item the next one begins at the earliest; later where the loop is late."""


class Courtesy:
    """Of one event loop; `chat` stands around a chat, `item` before an item."""

    def __init__(self) -> None:
        self._chats = 0
        self._last_chat = -math.inf
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Items by batch, the batch first that has waited longest for its turn."""
        self._letting_in: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def chat(self) -> Iterator[None]:
        self._chats += 1
        try:
            yield
        finally:
            self._chats -= 1
            self._last_chat = asyncio.get_running_loop().time()

    async def item(self, batch_id: str) -> None:
        """Wait for the item's turn to begin; batches take turns."""
        if not self._about:
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(batch_id, deque()).append(place)
        if self._letting_in is None or self._letting_in.done():
            self._letting_in = asyncio.create_task(self._let_in(), name="courtesy")
        await place

    @property
    def _about(self) -> bool:
        return self._chats > 0 or asyncio.get_running_loop().time() - self._last_chat < ABOUT_SECONDS

    async def _let_in(self) -> None:
        while self._waiting:
            place = self._next()
            if place.done():
                continue
            place.set_result(None)
            if self._about:
                await asyncio.sleep(APART_SECONDS)

    def _next(self) -> asyncio.Future[None]:
        batch_id = next(iter(self._waiting))
        places = self._waiting.pop(batch_id)
        place = places.popleft()
        if places:
            self._waiting[batch_id] = places
        return place
