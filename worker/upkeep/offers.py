"""Work of batches is offered to whoever has a free slot; which batch that slot is for, `Share` says."""

from __future__ import annotations

from worker.contract.batch.batches import BatchStore
from worker.contract.batch.share import Share
from worker.contract.wakeups.wake import Wakes


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
