"""Runs the items of a slice: each through the engine, its row stored as soon as it is known."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TypeVar

from aiforge.core.completions import Answer
from aiforge.core.types import ProviderCall, Usage
from aiforge.modules.chat.agent import TurnResult
from worker import metrics
from worker.calls.ledger import Recorder
from worker.calls.purse import BudgetExceededError
from worker.contract.batch.answers import AnswerStore, KeptAnswer
from worker.contract.batch.batches import BatchStore, Slice, Stored
from worker.contract.batch.line_schemas import LineItem
from worker.contract.errors import Unavailable
from worker.contract.schemas import BatchItem, BatchRow, Lane
from worker.contract.store import TurnStore
from worker.contract.wakeups.wake import Wakes
from worker.patience import patiently
from worker.running import recorders
from worker.running.courtesy import Courtesy
from worker.running.item_rows import item_row, turn_row
from worker.running.item_turns import ItemTurns, TurnEnded
from worker.running.reuse import Reuse
from worker.running.sharing import Newcomers
from worker.running.specs import Specs
from worker.suspects.quarantine import DEAD
from worker.upkeep.leases import Held
from worker.upkeep.offers import Offers

_log = logging.getLogger(__name__)
_LANE = Lane.BATCH.value
T = TypeVar("T")


class Items:
    """Runs the items of a slice that is held, one after the other."""

    def __init__(
        self,
        *,
        store: TurnStore,
        batches: BatchStore,
        specs: Specs,
        waker: Wakes,
        turns: ItemTurns | None = None,
        courtesy: Courtesy | None = None,
        newcomers: Newcomers | None = None,
    ) -> None:
        """In a process of a suspect's own no item can be a turn, and none makes way for anybody."""
        self._courtesy = courtesy
        self._newcomers = newcomers
        self._turns = turns
        self._store = store
        self._batches = batches
        self._specs = specs
        self._waker = waker
        self._offers = Offers(batches, waker)
        kept = AnswerStore(batches.connection, batches.settings)
        self._reuse = Reuse(kept, batches.settings.lease_seconds)

    async def run(self, taken: Slice, held: Held) -> bool:
        """Whether the batch has more to hand out."""
        if not taken.items:
            return await self._go_on(taken, await self._store_rows(taken, [], [], over=True))
        return await (self._turn(taken, held) if is_turn(taken) else self._each(taken, held))

    async def _begin(self, taken: Slice) -> None:
        if self._courtesy is not None:
            await self._courtesy.item(taken.batch_id)

    async def _each(self, taken: Slice, held: Held) -> bool:
        """One item after the other."""
        for position, (index, item) in enumerate(taken.items, start=1):
            await self._begin(taken)
            recorder = recorders.of_item(self._store, taken, index, self._specs)
            row = await self._item(taken, index, item, recorder, held)
            if not isinstance(row, BatchRow):
                await self.hand_back(taken, recorder.take(), again_in=row)
                return False
            over = position == len(taken.items)
            stored = await self._store_rows(taken, [row], recorder.take(), over=over)
            if over:
                return await self._go_on(taken, stored)
            if not stored.accepted:
                metrics.TURNS.labels(_LANE, "refused").inc()
                return False
            if stored.state != "in_progress" or held.reason is not None:
                await self.hand_back(taken, [])
                return False
            if self._newcomers is not None and self._newcomers.wait_for(taken.batch_id):
                return await self._release(taken, []) == "queued"
        return False

    async def _turn(self, taken: Slice, held: Held) -> bool:
        """The slice's one item is a turn, which was, or is, or will be run here or elsewhere."""
        ((index, item),) = taken.items
        assert isinstance(item, BatchItem)
        assert self._turns is not None
        await self._begin(taken)
        began = time.perf_counter()
        task = asyncio.create_task(self._turns.run(taken, index, item))
        ended = await _followed(task, held)
        if ended is None or isinstance(ended, Unavailable | float):
            await self.hand_back(taken, [], again_in=ended if isinstance(ended, float) else None)
            return False
        row = turn_row(index, item, ended, time.perf_counter() - began, taken.defaults.endpoint)
        calls = ended.calls if isinstance(ended, TurnEnded) else []
        return await self._go_on(taken, await self._store_rows(taken, [row], [], over=True, turn_calls=calls))

    async def bury(self, taken: Slice, calls: list[ProviderCall]) -> bool:
        """The slice's one item killed its process: that is its result. Whether there is more."""
        ((index, item),) = taken.items
        metrics.ITEMS.labels("failed").inc()
        metrics.count_failure(_LANE, DEAD.code)
        row = BatchRow(index=index, id=item.id, status="error", error=DEAD)
        return await self._go_on(taken, await self._store_rows(taken, [row], calls, over=True))

    async def _item(
        self, taken: Slice, index: int, item: BatchItem | LineItem, recorder: Recorder, held: Held
    ) -> BatchRow | float | None:
        """The item's row, or None when this worker has to let go of the slice; where a budget has no room yet
        the seconds until there may be some."""
        began = time.perf_counter()
        ended = await _followed(asyncio.create_task(self._answer(taken, index, item, recorder)), held)
        if ended is None or isinstance(ended, Unavailable):
            return None
        nothing_paid = all(call.usage in (None, Usage()) for call in recorder.made)
        if isinstance(ended, BudgetExceededError) and ended.again_in is not None and nothing_paid:
            return ended.again_in
        seconds = time.perf_counter() - began
        metrics.TURN_SECONDS.labels(_LANE).observe(seconds)
        return item_row(index, item, ended, recorder, seconds)

    async def _answer(
        self, taken: Slice, index: int, item: BatchItem | LineItem, recorder: Recorder
    ) -> TurnResult | Answer | KeptAnswer:
        if isinstance(item, LineItem):
            return await self._reuse.line(taken, index, self._specs.of_line(taken, item), recorder)
        return await self._reuse.item(taken, index, item, self._specs.of_item(taken, index, item), recorder)

    async def _store_rows(
        self,
        taken: Slice,
        rows: list[BatchRow],
        calls: list[ProviderCall],
        *,
        over: bool,
        turn_calls: Sequence[ProviderCall] = (),
    ) -> Stored:
        return await patiently(
            lambda: self._batches.store(
                taken.batch_id, taken.start, taken.fence, rows, calls=calls, over=over, turn_calls=turn_calls
            )
        )

    async def _go_on(self, taken: Slice, stored: Stored) -> bool:
        metrics.TURNS.labels(_LANE, "completed" if stored.accepted else "refused").inc()
        if stored.left:
            await self._offers.join(taken.batch_id)
        return stored.more

    async def hand_back(
        self, taken: Slice, calls: list[ProviderCall], *, again_in: float | None = None
    ) -> None:
        """`again_in`: in how many seconds there is work for others, None for at once."""
        answer = await self._release(taken, calls, again_in)
        if answer in ("queued", "over") and again_in is None:
            self._waker.wake(taken.batch_id)

    async def _release(
        self, taken: Slice, calls: list[ProviderCall], again_in: float | None = None
    ) -> str | None:
        """What became of the slice; None when nobody knows."""
        try:
            answer = await self._batches.release(
                taken.batch_id, taken.start, taken.fence, calls=calls, again_in=again_in
            )
        except Unavailable:
            _log.warning("slice_not_handed_back", extra={"batch": taken.batch_id})
            return None
        if answer == "queued":
            metrics.TURNS.labels(_LANE, "handed_back").inc()
        else:
            metrics.TURNS.labels(_LANE, "lost" if answer == "refused" else "cancelled").inc()
        if answer != "refused" and again_in is None:
            await self._offers.join(taken.batch_id)
        return answer


def is_turn(taken: Slice) -> bool:
    """Whether the slice is one item that continues a conversation: such a one is a slice of its own."""
    return any(isinstance(item, BatchItem) and item.conversation is not None for _, item in taken.items)


async def _followed(task: asyncio.Task[T], held: Held) -> T | BaseException | None:
    """How a task of a slice ended; None when it had to stop."""
    held.follow(task)
    try:
        await asyncio.wait([task])
    finally:
        task.cancel()
    return None if task.cancelled() else task.exception() or task.result()
