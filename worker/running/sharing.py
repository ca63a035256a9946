"""Work of batches is offered to whoever has a free slot; which batch that slot is for, `Share` says."""

from __future__ import annotations

import asyncio
from typing import Final

from worker.contract.batch.batches import BatchStore
from worker.contract.batch.share import Share
from worker.contract.errors import Unavailable
from worker.contract.schemas import Lane
from worker.contract.wakeups.knock import Knocker
from worker.suspects.quarantine import Wakes

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


class Offers:
    """Tells the workers that a batch has work."""

    def __init__(self, batches: BatchStore, waker: Wakes) -> None:
        self._batches = batches
        self._share = Share(batches.connection, batches.settings)
        self._waker = waker

    async def join(self, batch_id: str) -> None:
        """Let a batch take part in the sharing of slots again; one that is gone does not."""
        owner = await self._batches.owner(batch_id)
        if owner is not None:
            tenant, expires_at = owner
            await self._share.join(batch_id, tenant, expires_at=expires_at)

    async def offer(self, batch_id: str) -> None:
        """Wake as many workers as the batch has work for."""
        await self.join(batch_id)
        self._waker.wake(batch_id, times=await self._batches.waiting(batch_id))
