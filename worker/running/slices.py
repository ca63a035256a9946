"""Runs slices of batches: each item through the engine, its row stored as soon as it is known."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from typing import TypeVar

import msgspec

from aiforge.core.completions import Answer
from aiforge.core.types import AIForgeError, ProviderCall, Usage
from aiforge.modules.chat.agent import TurnResult
from worker import metrics
from worker.calls import ledger
from worker.calls.ledger import Recorder
from worker.calls.lost import lost_items
from worker.calls.purse import BudgetExceededError
from worker.contract.batch.answers import AnswerStore, KeptAnswer
from worker.contract.batch.batches import BatchStore, Slice, Stored
from worker.contract.batch.line_schemas import LineItem, LineResponse
from worker.contract.batch.share import Share
from worker.contract.errors import Unavailable
from worker.contract.schemas import (
    BATCH_OVER,
    BatchItem,
    BatchRow,
    Lane,
    TurnFailure,
)
from worker.contract.store import Refused, TurnStore, new_token
from worker.patience import patiently
from worker.running.item_turns import ItemTurns, Runs, TurnEnded, line_response
from worker.running.reuse import Reuse
from worker.running.sharing import Offers
from worker.running.specs import Specs
from worker.running.steps import Steps
from worker.suspects.quarantine import DEAD, Quarantine, Wakes
from worker.upkeep.leases import Held, Leases

_log = logging.getLogger(__name__)
_LANE = Lane.BATCH.value
T = TypeVar("T")


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
        self._items = Items(store=store, batches=batches, specs=specs, waker=waker, turns=self._turns)

    async def close(self) -> None:
        await self._turns.close()

    async def run(self, batch_id: str) -> None:
        """Run slices while there are some, each of the batch that is next then.

        A wake-up says that there is work, and for the case that nobody knows whose, of which batch. When a
        chat waits for a slot the work goes back behind it, by a wake-up.
        """
        following: str | None = batch_id
        while not self._draining():
            taken = await self._claim(following)
            if taken is None:
                return
            following, kept = await self._run(taken)
            if not kept or await self._chats_wait():
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
            elif taken.suspect and not _is_turn(taken):
                more = await self._apart(taken, held)
            else:
                more = await self._items.run(taken, held)
            kept = held.reason is None
        return (taken.batch_id if more else None), kept

    async def _claim(self, named: str | None) -> Slice | None:
        """A slice of whichever batch is next and has one, at last of the named one."""
        refused: set[str] = set()
        while (picked := await self._share.pick()) is not None and picked.batch_id not in refused:
            taken = await self._take(picked.batch_id)
            if isinstance(taken, Slice):
                return taken
            refused.add(picked.batch_id)
            over = taken.why == "gone" or taken.detail in BATCH_OVER
            await self._share.leave(picked.batch_id, picked.tenant, for_good=over)
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
    ) -> None:
        """Without `turns`, as in a process of a suspect's own, no item can be a turn."""
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
        return await (self._turn(taken, held) if _is_turn(taken) else self._each(taken, held))

    async def _each(self, taken: Slice, held: Held) -> bool:
        """One item after the other."""
        for position, (index, item) in enumerate(taken.items, start=1):
            recorder = ledger.of_item(self._store, taken, index, self._specs)
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
        return False

    async def _turn(self, taken: Slice, held: Held) -> bool:
        """The slice's one item is a turn, which was, or is, or will be run here or elsewhere."""
        ((index, item),) = taken.items
        assert isinstance(item, BatchItem)
        assert self._turns is not None
        began = time.perf_counter()
        task = asyncio.create_task(self._turns.run(taken, index, item))
        ended = await _followed(task, held)
        if ended is None or isinstance(ended, Unavailable):
            await self.hand_back(taken, [])
            return False
        row = _turn_row(index, item, ended, time.perf_counter() - began, taken.defaults.endpoint)
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
        if ended is None:
            return None
        nothing_paid = not any(call.usage for call in recorder.made)
        if isinstance(ended, BudgetExceededError) and ended.again_in is not None and nothing_paid:
            return ended.again_in
        seconds = time.perf_counter() - began
        metrics.TURN_SECONDS.labels(_LANE).observe(seconds)
        return _row(index, item, ended, recorder, seconds)

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
        try:
            answer = await self._batches.release(
                taken.batch_id, taken.start, taken.fence, calls=calls, again_in=again_in
            )
        except Unavailable:
            _log.warning("slice_not_handed_back", extra={"batch": taken.batch_id})
            return
        if answer == "queued":
            metrics.TURNS.labels(_LANE, "handed_back").inc()
        else:
            metrics.TURNS.labels(_LANE, "lost" if answer == "refused" else "cancelled").inc()
        if answer != "refused" and again_in is None:
            await self._offers.join(taken.batch_id)
            self._waker.wake(taken.batch_id)


def _is_turn(taken: Slice) -> bool:
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


def _turn_row(
    index: int, item: BatchItem, ended: TurnEnded | BaseException, seconds: float, endpoint: str | None
) -> BatchRow:
    turn = calls = error = None
    match ended:
        case TurnEnded():
            turn, calls = ended.turn, ended.calls
            error = turn.error if ended.failure is None else _failure(ended.failure)
        case AIForgeError():
            error = _failure(ended)
        case _:
            error = _crashed(ended)
    _count(error)
    return BatchRow(
        index=index,
        id=item.id,
        status="error" if error else "ok",
        answer=turn.answer if turn and not error and not endpoint else None,
        error=error,
        model=turn.model if turn else None,
        usage=turn.usage if turn else None,
        cost=turn.cost if turn else None,
        latency_ms=round(seconds * 1000, 1),
        attempts=len(calls or []),
        response=line_response(endpoint, turn) if turn and endpoint and not error else None,
    )


def _row(
    index: int,
    item: BatchItem | LineItem,
    ended: TurnResult | Answer | KeptAnswer | BaseException,
    recorder: Recorder,
    seconds: float,
) -> BatchRow:
    answer = error = response = None
    match ended:
        case TurnResult():
            answer = ended.answer
        case KeptAnswer():
            answer, response = ended.answer, ended.response
        case Answer():
            response = LineResponse(
                status_code=ended.status, request_id=ended.request_id, body=msgspec.Raw(ended.body)
            )
            if ended.failure is not None:
                error = _failure(ended.failure)
        case AIForgeError():
            error = _failure(ended)
        case _:
            error = _crashed(ended)
    _count(error)
    made = recorder.made
    paid = [call for call in made if call.usage is not None]
    return BatchRow(
        index=index,
        id=item.id,
        status="error" if error else "ok",
        answer=answer,
        error=error,
        model=ended.model if isinstance(ended, KeptAnswer) else made[-1].model if made else None,
        usage=sum((call.usage for call in paid if call.usage is not None), Usage()) if paid else None,
        cost=_sum([call.cost for call in paid]),
        latency_ms=round(seconds * 1000, 1),
        attempts=len(made),
        response=response,
        cached=isinstance(ended, KeptAnswer),
    )


def _crashed(error: BaseException) -> TurnFailure:
    _log.error("item_crashed", exc_info=error)
    return TurnFailure("internal_error", "the worker met an error of its own", retryable=True)


def _count(error: TurnFailure | None) -> None:
    metrics.ITEMS.labels("failed" if error else "completed").inc()
    if error is not None:
        metrics.count_failure(_LANE, error.code)


def _failure(error: AIForgeError) -> TurnFailure:
    return TurnFailure(error.code, str(error), error.retryable)


def _sum(costs: list[Decimal | None]) -> Decimal | None:
    """None when any of them is unknown: unknown is not zero."""
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal(0)) if len(known) == len(costs) else None
