"""Finds what nobody works on: leases that ran out, and ready work whose wake-up was lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from worker import metrics
from worker.calls.lost import lost_calls, lost_items
from worker.calls.purse import Purses
from worker.contract.batch.batches import BatchStore, Slice
from worker.contract.batch.files import FileStore
from worker.contract.errors import ContractError, NotFound, Unavailable
from worker.contract.ids import SHARDS, is_batch, is_file_id
from worker.contract.schemas import Lane
from worker.contract.store import TurnStore
from worker.contract.wakeups.knock import Knocker
from worker.contract.wakeups.wake import Waker
from worker.upkeep.contained import Contained
from worker.upkeep.offers import Offers
from worker.upkeep.schedules import Schedules

TICK_SECONDS: Final = 0.5
DELETING_SECONDS: Final = 60.0
"""How long a file whose time is over may take to be deleted before that is tried again."""
_log = logging.getLogger(__name__)


class Reaper:
    """One in every worker; each shard is looked after by the one that holds the shard's lock."""

    def __init__(
        self,
        worker: str,
        store: TurnStore,
        batches: BatchStore,
        files: FileStore,
        *,
        schedules: Schedules,
        purses: Purses,
        waker: Waker | Knocker,
    ) -> None:
        self._worker = worker
        self._store = store
        self._batches = batches
        self._offers = Offers(batches, waker)
        self._files = files
        self._schedules = schedules
        self._purses = purses
        self._waker = waker
        self._contained = Contained()
        self._deleting: asyncio.Task[None] | None = None

    async def watch(self, draining: Callable[[], bool]) -> None:
        """Tick until the worker drains; a Redis or broker that is away is tried again at the next tick."""
        try:
            while not draining():
                try:
                    await self.tick()
                except Unavailable as error:
                    _log.warning("reaper_waits", extra={"reason": type(error).__name__})
                await asyncio.sleep(TICK_SECONDS)
        finally:
            if self._deleting is not None:
                self._deleting.cancel()

    async def tick(self) -> None:
        """Requeue everything whose lease ran out, let go on whose time has come, fire schedules, then wake
        what is due."""
        found = await self._store.reap(range(SHARDS), self._worker)
        for work in [work for shard in found for work in shard.expired]:
            metrics.REAPED.labels("lease").inc()
            await self._contained.take(work, self._slice_died if is_batch(work) else self._turn_died)
        timed = [name for shard in found for name in shard.timed]
        metrics.REAPED.labels("due").inc(len(timed))
        await self._expire([name for name in timed if is_file_id(name)])
        for name in [name for name in timed if not is_file_id(name)]:
            await self._contained.take(name, self._due)
        await self._schedules.fire([name for shard in found for name in shard.schedules])
        due = [work for shard in found for work in shard.due]
        if due:
            await self._wake(due, ready=sum(shard.ready for shard in found))

    async def _wake(self, due: list[str], ready: int) -> None:
        """Never more wake-ups than work that none is on its way for; what gets none is due again soon."""
        depth = await self._waker.depth()
        missing = max(0, ready - depth[Lane.CHAT])
        turns = [work for work in due if not is_batch(work)][:missing]
        batches = [work for work in due if is_batch(work)]
        await self._store.woken([*turns, *batches])
        for turn_id in turns:
            metrics.REAPED.labels("wake").inc()
            self._waker.wake(turn_id)
        for batch_id in batches:
            await self._contained.take(batch_id, partial(self._wake_batch, depth[Lane.BATCH]))

    async def _wake_batch(self, depth: int, batch_id: str) -> None:
        await self._offers.join(batch_id)
        times = max(0, await self._batches.waiting(batch_id) - depth)
        metrics.REAPED.labels("wake").inc(times)
        self._waker.wake(batch_id, times=times)

    async def _turn_died(self, turn_id: str) -> None:
        try:
            place = await self._store.place(turn_id)
        except NotFound:
            return
        calls = await lost_calls(self._store, place, self._purses.prices)
        answer, _ = await self._store.requeue(place, None, calls=calls)
        await self._purses.charge(place.tenant, calls)
        if answer == "queued":
            self._waker.wake(turn_id)

    async def _due(self, name: str) -> None:
        """The time of a batch or turn has come."""
        if not is_batch(name):
            await self._time_has_come(name)
        elif await self._batches.due(name):
            self._waker.wake(name)

    async def _expire(self, files: list[str]) -> None:
        """Delete files beside the ticks: nobody knows how long that takes where their bytes are."""
        for file_id in files:
            await self._files.later(file_id, DELETING_SECONDS)
        if files and (self._deleting is None or self._deleting.done()):
            self._deleting = asyncio.create_task(self._delete(files))

    async def _delete(self, files: list[str]) -> None:
        for file_id in files:
            try:
                await self._files.expire(file_id)
            except ContractError as error:
                _log.warning("file_not_deleted", extra={"file": file_id, "reason": str(error)})

    async def _time_has_come(self, turn_id: str) -> None:
        try:
            ready = await self._store.due(await self._store.place(turn_id))
        except NotFound:
            return
        if ready is not None:
            self._waker.wake(ready)

    async def _slice_died(self, work: str) -> None:
        batch_id, _, start = work.partition("/")
        left = await self._left_behind(batch_id, int(start))
        calls = await lost_items(self._batches, left, self._purses.prices) if left else []
        await self._batches.release(batch_id, int(start), None, calls=calls)
        if left is not None:
            await self._purses.charge(left.tenant, calls)
        await self._offers.join(batch_id)
        self._waker.wake(batch_id)

    async def _left_behind(self, batch_id: str, start: int) -> Slice | None:
        try:
            return await self._batches.left_behind(batch_id, start)
        except msgspec.MsgspecError:
            return None  # of a newer version, which knows what it may have cost
