"""A worker of a few lines for batches: takes slices, answers them, dies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from aiforge.core.types import ProviderCall
from tests.support.turns import COST, USAGE, intended, paid
from worker.contract.batch.batches import BatchStore, Slice, Stored
from worker.contract.batch.line_schemas import LineResponse
from worker.contract.claims import Refused, new_token
from worker.contract.schemas import BatchItem, BatchRow, TurnFailure

Released: TypeAlias = Literal["queued", "refused", "over"]


class Sliced:
    """A slice that was taken."""

    def __init__(self, store: BatchStore, taken: Slice) -> None:
        self._store = store
        self.taken = taken

    @property
    def items(self) -> list[int]:
        """The indexes that are still to be done."""
        return [index for index, _ in self.taken.items]

    def call_id(self, index: int, number: int = 1) -> str:
        return self.taken.call_id(index, number)

    def row(self, index: int, *, latency_ms: float = 100.0) -> BatchRow:
        """The answer to an item."""
        item = dict(self.taken.items)[index]
        row = BatchRow(
            index=index, id=item.id, status="ok", model="m", usage=USAGE, cost=COST, latency_ms=latency_ms
        )
        if isinstance(item, BatchItem):
            return msgspec.structs.replace(row, answer=f"answer to {item.message}")
        said = LineResponse(status_code=200, request_id="r", body=item.body)
        return msgspec.structs.replace(row, response=said)

    async def store(
        self, rows: Sequence[BatchRow], *, calls: Sequence[ProviderCall] = (), over: bool = False
    ) -> Stored:
        taken = self.taken
        return await self._store.store(taken.batch_id, taken.start, taken.fence, rows, calls=calls, over=over)

    async def answer_all(self, *, latency_ms: float = 100.0) -> None:
        for index in self.items:
            await self.store(
                [self.row(index, latency_ms=latency_ms)],
                calls=[paid(self.call_id(index))],
                over=index == self.items[-1],
            )

    async def fail_all(self) -> None:
        for index in self.items:
            failure = TurnFailure("provider_refused", "no")
            row = BatchRow(index=index, id=None, status="error", error=failure)
            await self.store([row], over=index == self.items[-1])

    async def hand_back(self, *, calls: Sequence[ProviderCall] = ()) -> Released:
        taken = self.taken
        return await self._store.release(taken.batch_id, taken.start, taken.fence, calls=calls)


async def take(store: BatchStore, batch_id: str, *, token: str | None = None) -> Sliced | Refused:
    """The batch's next slice."""
    taken = await store.claim(batch_id, token or new_token(), intended(""))
    return taken if isinstance(taken, Refused) else Sliced(store, taken)


async def kill(store: BatchStore, batch_id: str, start: int) -> Released:
    """The worker of the slice that begins at `start` dies and the reaper takes it."""
    leases = store.keys.leases(int(batch_id.removeprefix("batch_")[:2]))
    await store.connection.command("ZADD", leases, "XX", 0, f"{batch_id}/{start}")
    return await store.release(batch_id, start, None)
