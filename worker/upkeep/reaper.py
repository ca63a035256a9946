"""Finds what nobody works on: leases that ran out, and ready work whose wake-up was lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from worker import metrics
from worker.calls.lost import lost_calls, lost_items
from worker.calls.purse import Purses
from worker.contract.batch.batches import BatchStore
from worker.contract.batch.files import FileStore
from worker.contract.errors import NotFound, Unavailable
from worker.contract.keys import SHARDS, is_batch, is_file_id
from worker.contract.schemas import Lane
from worker.contract.store import TurnStore
from worker.contract.wakeups.knock import Knocker
from worker.contract.wakeups.wake import Waker
from worker.running.sharing import Offers
from worker.upkeep.schedules import Schedules

TICK_SECONDS: Final = 0.5
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

    async def watch(self, draining: Callable[[], bool]) -> None:
        """Tick until the worker drains; a Redis or broker that is away is tried again at the next tick."""
        while not draining():
            try:
                await self.tick()
            except Unavailable as error:
                _log.warning("reaper_waits", extra={"reason": type(error).__name__})
            await asyncio.sleep(TICK_SECONDS)

    async def tick(self) -> None:
        """Requeue everything whose lease ran out, let go on whose time has come, fire schedules, then wake
        what is due."""
        found = await self._store.reap(range(SHARDS), self._worker)
        for work in [work for shard in found for work in shard.expired]:
            metrics.REAPED.labels("lease").inc()
            await (self._slice_died(work) if is_batch(work) else self._turn_died(work))
        for name in [name for shard in found for name in shard.timed]:
            metrics.REAPED.labels("due").inc()
            await self._due(name)
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
            await self._offers.join(batch_id)
            times = max(0, await self._batches.waiting(batch_id) - depth[Lane.BATCH])
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
        """The time of a file, batch or turn has come."""
        if is_file_id(name):
            await self._files.expire(name)
        elif not is_batch(name):
            await self._time_has_come(name)
        elif await self._batches.due(name):
            self._waker.wake(name)

    async def _time_has_come(self, turn_id: str) -> None:
        try:
            ready = await self._store.due(await self._store.place(turn_id))
        except NotFound:
            return
        if ready is not None:
            self._waker.wake(ready)

    async def _slice_died(self, work: str) -> None:
        batch_id, _, start = work.partition("/")
        left = await self._batches.left_behind(batch_id, int(start))
        calls = await lost_items(self._batches, left, self._purses.prices) if left else []
        await self._batches.release(batch_id, int(start), None, calls=calls)
        if left is not None:
            await self._purses.charge(left.tenant, calls)
        await self._offers.join(batch_id)
        self._waker.wake(batch_id)
