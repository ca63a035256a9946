"""Slots of batches make way: for chats that wait, and for batches that have come just now."""

from __future__ import annotations

import asyncio
from typing import Final

from worker.contract.batch.share import Share
from worker.contract.errors import Unavailable
from worker.contract.schemas import Lane
from worker.contract.wakeups.knock import Knocker

FRESH_SECONDS: Final = 0.02
"""How long it holds how many chats wait: as long as it takes to give a slot away."""


class Chats:
    """Which slots make way for chats: of one event loop, asked whenever a slice has ended."""

    def __init__(self, lanes: Knocker | None) -> None:
        """Without `lanes` nobody knows how many wait, and every slot makes way."""
        self._lanes = lanes
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._waiting = 0

    async def wait(self) -> bool:
        """Whether a chat waits for this slot: no more slots make way than chats are waiting."""
        if self._lanes is None:
            return True
        now = asyncio.get_running_loop().time()
        if self._asking is None or (self._asking.done() and now - self._asked_at >= FRESH_SECONDS):
            self._asked_at = now
            self._asking = asyncio.create_task(self._ask(self._lanes), name="chats")
        await asyncio.wait([self._asking])
        self._waiting -= 1
        return self._waiting >= 0

    async def _ask(self, lanes: Knocker) -> None:
        try:
            self._waiting = (await lanes.depth())[Lane.CHAT]
        except Unavailable:
            # None can come from there either.
            self._waiting = 0


class Newcomers:
    """Which slots make way for batches that have come just now: of one event loop, asked after each item."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._looking: asyncio.Task[None] | None = None
        self._looked_at = 0.0
        self._expected: dict[str, int] = {}

    def wait_for(self, batch_id: str) -> bool:
        """Whether this batch's slot makes way: no more do than newcomers expect, and none of theirs.

        By what was seen a moment ago, so that nobody waits for the answer.
        """
        now = asyncio.get_running_loop().time()
        if (self._looking is None or self._looking.done()) and now - self._looked_at >= FRESH_SECONDS:
            self._looked_at = now
            self._looking = asyncio.create_task(self._look(), name="newcomers")
        if not self._expected or batch_id in self._expected:
            return False
        newcomer, slots = self._expected.popitem()
        if slots > 1:
            self._expected[newcomer] = slots - 1
        return True

    async def _look(self) -> None:
        try:
            self._expected = await self._share.newcomers()
        except Unavailable:
            self._expected = {}
