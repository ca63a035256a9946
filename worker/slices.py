"""Runs slices of batches: each item through the engine, its row stored as soon as it is known."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from decimal import Decimal

from aiforge.core.events import Event
from aiforge.core.types import AIForgeError, ConfigError, ProviderCall, Usage
from aiforge.modules.chat.agent import TurnResult
from worker import engine, metrics
from worker.contract.batches import BatchStore, Slice, Stored
from worker.contract.errors import Unavailable
from worker.contract.schemas import BatchItem, BatchRow, Lane, TurnFailure
from worker.contract.store import Refused, TurnStore, new_token
from worker.leases import Held, Leases
from worker.ledger import Recorder
from worker.lost import lost_items
from worker.patience import patiently
from worker.quarantine import DEAD, Quarantine, Wakes
from worker.specs import Specs

_log = logging.getLogger(__name__)
_LANE = Lane.BATCH.value


class SliceRunner:
    """Runs slices on one event loop; every method is called there."""

    def __init__(
        self,
        *,
        store: TurnStore,
        batches: BatchStore,
        leases: Leases,
        specs: Specs,
        waker: Wakes,
        quarantine: Quarantine,
        draining: Callable[[], bool],
    ) -> None:
        self._batches = batches
        self._leases = leases
        self._specs = specs
        self._waker = waker
        self._quarantine = quarantine
        self._draining = draining
        self._items = Items(store=store, batches=batches, specs=specs, waker=waker)

    async def run(self, batch_id: str) -> None:
        """Run the batch's next slice; the wake-up for the one after it is sent at the end."""
        if self._draining():
            self._waker.wake(batch_id)
            return
        token = new_token()
        taken = await self._batches.claim(batch_id, token, self._specs.first_call)
        if isinstance(taken, Refused):
            metrics.DROPPED.labels(taken.why).inc()
            return
        metrics.QUEUE_SECONDS.labels(_LANE).observe(taken.waited)
        with (
            metrics.IN_FLIGHT.labels(_LANE).track_inprogress(),
            self._leases.hold(taken.work, taken.fence) as held,
        ):
            if taken.suspect:
                await self._apart(taken, held)
            else:
                await self._items.run(taken, held)

    async def _apart(self, taken: Slice, held: Held) -> None:
        """Run a suspect in a process of its own."""
        left = await self._quarantine.run(taken, held)
        if left.ended is not None:
            return
        calls = await patiently(lambda: lost_items(self._batches, taken)) if left.begun else []
        if left.begun and held.reason is None and len(taken.items) == 1:
            await self._items.bury(taken, calls)
        else:
            await self._items.hand_back(taken, calls)


class Items:
    """Runs the items of a slice that is held, one after the other."""

    def __init__(self, *, store: TurnStore, batches: BatchStore, specs: Specs, waker: Wakes) -> None:
        self._store = store
        self._batches = batches
        self._specs = specs
        self._waker = waker

    async def run(self, taken: Slice, held: Held) -> None:
        if not taken.items:
            self._go_on(taken, await self._store_rows(taken, [], [], over=True))
        for position, (index, item) in enumerate(taken.items, start=1):
            recorder = self._recorder(taken, index)
            row = await self._item(taken, index, item, recorder, held)
            if row is None:
                await self.hand_back(taken, recorder.take())
                return
            over = position == len(taken.items)
            stored = await self._store_rows(taken, [row], recorder.take(), over=over)
            if over:
                self._go_on(taken, stored)
            elif not stored.accepted:
                metrics.TURNS.labels(_LANE, "refused").inc()
                return
            elif stored.state != "in_progress" or held.reason is not None:
                await self.hand_back(taken, [])
                return

    async def bury(self, taken: Slice, calls: list[ProviderCall]) -> None:
        """The slice's one item killed its process: that is its result."""
        ((index, item),) = taken.items
        metrics.ITEMS.labels("failed").inc()
        metrics.count_failure(_LANE, DEAD.code)
        row = BatchRow(index=index, id=item.id, status="error", error=DEAD)
        self._go_on(taken, await self._store_rows(taken, [row], calls, over=True))

    def _recorder(self, taken: Slice, index: int) -> Recorder:
        prefix = f"{taken.batch_id}.{taken.token}.{index}"
        return Recorder(self._store, taken.batch_id, prefix, self._specs.first_call)

    async def _item(
        self, taken: Slice, index: int, item: BatchItem, recorder: Recorder, held: Held
    ) -> BatchRow | None:
        """The item's row, or None when this worker has to let go of the slice."""
        began = time.perf_counter()
        task = asyncio.create_task(self._answer(taken, index, item, recorder))
        held.follow(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        if task.cancelled():
            return None
        seconds = time.perf_counter() - began
        metrics.TURN_SECONDS.labels(_LANE).observe(seconds)
        return _row(index, item, task.exception() or task.result(), recorder, seconds)

    async def _answer(self, taken: Slice, index: int, item: BatchItem, recorder: Recorder) -> TurnResult:
        spec = self._specs.of_item(taken, index, item)
        # An item is a conversation of its own.
        result = await engine.answer(spec, spec.turn_id, emit=_ignore, recorder=recorder)
        if result.pending is not None:
            raise ConfigError(
                f"tool {result.pending.tool!r} asks a human, which an item of a batch cannot do"
            )
        return result

    async def _store_rows(
        self, taken: Slice, rows: list[BatchRow], calls: list[ProviderCall], *, over: bool
    ) -> Stored:
        return await patiently(
            lambda: self._batches.store(
                taken.batch_id, taken.start, taken.fence, rows, calls=calls, over=over
            )
        )

    def _go_on(self, taken: Slice, stored: Stored) -> None:
        metrics.TURNS.labels(_LANE, "completed" if stored.accepted else "refused").inc()
        if stored.more:
            self._waker.wake(taken.batch_id)

    async def hand_back(self, taken: Slice, calls: list[ProviderCall]) -> None:
        try:
            answer = await self._batches.release(taken.batch_id, taken.start, taken.fence, calls=calls)
        except Unavailable:
            _log.warning("slice_not_handed_back", extra={"batch": taken.batch_id})
            return
        if answer == "queued":
            metrics.TURNS.labels(_LANE, "handed_back").inc()
            self._waker.wake(taken.batch_id)
        else:
            metrics.TURNS.labels(_LANE, "lost" if answer == "refused" else "cancelled").inc()


def _row(
    index: int, item: BatchItem, ended: TurnResult | BaseException, recorder: Recorder, seconds: float
) -> BatchRow:
    answer = error = None
    match ended:
        case TurnResult():
            answer = ended.answer
        case AIForgeError():
            error = TurnFailure(ended.code, str(ended), ended.retryable)
        case _:
            _log.error("item_crashed", exc_info=ended)
            error = TurnFailure("internal_error", "the worker met an error of its own", retryable=True)
    metrics.ITEMS.labels("failed" if error else "completed").inc()
    if error is not None:
        metrics.count_failure(_LANE, error.code)
    made = recorder.made
    paid = [call for call in made if call.usage is not None]
    return BatchRow(
        index=index,
        id=item.id,
        status="error" if error else "ok",
        answer=answer,
        error=error,
        model=made[-1].model if made else None,
        usage=sum((call.usage for call in paid if call.usage is not None), Usage()) if paid else None,
        cost=_sum([call.cost for call in paid]),
        latency_ms=round(seconds * 1000, 1),
        attempts=len(made),
    )


def _sum(costs: list[Decimal | None]) -> Decimal | None:
    """None when any of them is unknown: unknown is not zero."""
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal(0)) if len(known) == len(costs) else None


def _ignore(_event: Event) -> None:
    """Items do not stream."""
