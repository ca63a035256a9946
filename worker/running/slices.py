"""Runs slices of batches: claimed, held by a lease, and gone on with while there are some."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiforge.core.types import ProviderCall
from worker import metrics
from worker.calls.lost import lost_items
from worker.contract.batch.batches import BatchStore, Slice
from worker.contract.batch.share import Picked, Share
from worker.contract.claims import Refused, new_token
from worker.contract.schemas import BATCH_OVER, Lane
from worker.contract.store import TurnStore
from worker.contract.wakeups.wake import Wakes
from worker.patience import patiently
from worker.running.courtesy import Courtesy
from worker.running.item_turns import ItemTurns, Runs
from worker.running.items import Items, is_turn
from worker.running.sharing import Newcomers
from worker.running.specs import Specs
from worker.running.steps import Steps
from worker.suspects.quarantine import Quarantine
from worker.upkeep.leases import Held, Leases

_LANE = Lane.BATCH.value


class SliceRunner:
    """Runs slices on one event loop; every method is called there."""

    def __init__(
        self,
        *,
        store: TurnStore,
        turns: Runs,
        batches: BatchStore,
        leases: Leases,
        specs: Specs,
        waker: Wakes,
        quarantine: Quarantine,
        draining: Callable[[], bool],
        chats_wait: Callable[[], Awaitable[bool]],
        courtesy: Courtesy,
    ) -> None:
        self._chats_wait = chats_wait
        self._batches = batches
        self._leases = leases
        self._specs = specs
        self._waker = waker
        self._quarantine = quarantine
        self._draining = draining
        self._share = Share(batches.connection, batches.settings)
        self._steps = Steps(batches=batches, waker=waker, foreign=specs.foreign)
        self._turns = ItemTurns(store, turns, waker)
        self._items = Items(
            store=store,
            batches=batches,
            specs=specs,
            waker=waker,
            turns=self._turns,
            courtesy=courtesy,
            newcomers=Newcomers(self._share),
        )

    async def close(self) -> None:
        await self._turns.close()

    async def run(self, batch_id: str) -> None:
        """Run slices while there are some, each of the batch that is next then.

        A wake-up says that there is work, and for the case that nobody knows whose, of which batch. When a
        chat waits for a slot the work goes back behind it, by a wake-up.
        """
        following: str | None = batch_id
        picked = await self._share.pick()
        while not self._draining():
            taken = await self._claim(picked, following)
            if taken is None:
                return
            following, kept = await self._run(taken)
            if not kept:
                break
            chat_waits, picked = await asyncio.gather(self._chats_wait(), self._share.pick())
            if chat_waits:
                break
        if following is not None:
            self._waker.wake(following)

    async def _run(self, taken: Slice) -> tuple[str | None, bool]:
        """The slice's batch when that has more, and whether this slot may go on."""
        metrics.QUEUE_SECONDS.labels(_LANE).observe(taken.waited)
        with (
            metrics.IN_FLIGHT.labels(_LANE).track_inprogress(),
            self._leases.hold(taken.work, taken.fence) as held,
        ):
            if taken.start < 0:
                await self._steps.run(taken, held)
                more = False
            elif taken.suspect and not is_turn(taken):
                more = await self._apart(taken, held)
            else:
                more = await self._items.run(taken, held)
            kept = held.reason is None
        return (taken.batch_id if more else None), kept

    async def _claim(self, picked: Picked | None, named: str | None) -> Slice | None:
        """A slice of what was picked, else of whichever batch is next and has one, at last of the named."""
        refused: set[str] = set()
        while picked is not None and picked.batch_id not in refused:
            taken = await self._take(picked.batch_id)
            if isinstance(taken, Slice):
                return taken
            refused.add(picked.batch_id)
            # A file that is being validated comes back with all that a newcomer may expect.
            over = taken.why == "gone" or taken.detail in (*BATCH_OVER, "validate")
            await self._share.leave(picked.batch_id, picked.tenant, for_good=over)
            picked = await self._share.pick()
        if named is None:
            return None
        taken = Refused("refused", "") if named in refused else await self._take(named)
        if isinstance(taken, Refused):
            metrics.DROPPED.labels(taken.why).inc()
            return None
        return taken

    async def _take(self, batch_id: str) -> Slice | Refused:
        return await self._batches.claim(batch_id, new_token(), self._specs.first_call)

    async def _apart(self, taken: Slice, held: Held) -> bool:
        """Run a suspect in a process of its own; whether there is more, which that process does not tell."""
        left = await self._quarantine.run(taken, held)
        if left.ended is not None:
            return False
        calls = await patiently(lambda: self._lost(taken)) if left.begun else []
        if left.begun and held.reason is None and len(taken.items) == 1:
            return await self._items.bury(taken, calls)
        await self._items.hand_back(taken, calls)
        return False

    async def _lost(self, taken: Slice) -> list[ProviderCall]:
        """The calls that a process of its own has left open."""
        calls = await lost_items(self._batches, taken, self._specs.prices)
        await self._specs.charge(taken.tenant, calls)
        return calls
