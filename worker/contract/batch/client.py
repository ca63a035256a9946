"""Batches for callers: the input is checked, the work stored, and workers are woken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from aiforge.core.settings import AIForgeSettings
from aiforge.tools import registry
from worker.contract.batch.answers import AnswerStore
from worker.contract.batch.batches import BatchStore
from worker.contract.batch.files import FileStore
from worker.contract.batch.share import Share
from worker.contract.checks import check_batch, check_key
from worker.contract.errors import NotFound
from worker.contract.ids import is_batch_id
from worker.contract.schemas import BATCH_OVER, Batch, BatchRequest, BatchRow, Caller
from worker.contract.server.connection import Connection
from worker.contract.settings import ContractSettings
from worker.contract.wakeups.knock import Knocker
from worker.contract.wakeups.wake import Waker

NEWS_SECONDS: Final = 0.5


class Deleted(NamedTuple):
    """A batch that is gone, as it was last seen."""

    batch: Batch


class BatchClient:
    """The part of `TurnClient` that is about batches; every method raises ContractError."""

    def __init__(self, connection: Connection, settings: ContractSettings, waker: Waker | Knocker) -> None:
        self.settings = settings
        self.caller = Caller()
        self.connection = connection
        self.batches = BatchStore(connection, settings)
        self.files = FileStore(connection, settings)
        self.answers = AnswerStore(connection, settings)
        self._share = Share(connection, settings)
        self._waker = waker
        self._tools = registry.names(AIForgeSettings.load())

    async def submit_batch(
        self,
        request: BatchRequest,
        *,
        batch_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Batch:
        """Store all items, or the name of the file that holds them, then wake as many workers as can help.

        Under a `batch_id` of one's own a repetition stores nothing twice.
        With the same `idempotency_key` and request, the same batch is returned, marked `replayed`. Raises
        InvalidInput or Conflict (`idempotency_mismatch`).
        """
        check_batch(request, self._tools)
        if idempotency_key is not None:
            check_key(idempotency_key)
            # Its file may be gone by now.
            if known := await self.batches.known(request, self.caller.tenant, idempotency_key):
                return known
        if request.input_file_id is not None:
            await self.files.check_input(request.input_file_id, self.caller.tenant)
        batch = await self.batches.create(
            request, self.caller.tenant, batch_id, key=idempotency_key, api_key=self.caller.api_key
        )
        if not batch.replayed:
            await self._offer(batch)
        return batch

    async def batch(self, batch_id: str) -> Batch:
        return await self.batches.get(_batch(batch_id), self.caller.tenant)

    async def latest_batches(self, *, after: str | None = None, limit: int = 20) -> list[Batch]:
        """Batches, the newest first, behind the one named by `after`."""
        return await self.batches.page(
            self.caller.tenant, after=None if after is None else _batch(after), limit=limit
        )

    async def results(self, batch_id: str, *, after: int = 0, limit: int = 1000) -> list[BatchRow]:
        """Rows from index `after` on, up to the first unfinished one; of a batch that is over, all."""
        return await self.batches.rows(_batch(batch_id), self.caller.tenant, after, limit)

    def result_parts(
        self, batch_id: str, *, after: int = 0, limit: int = 1000
    ) -> AsyncIterator[list[BatchRow]]:
        """What `results` returns, some at a time, so that long answers need not all be held."""
        return self.batches.parts(_batch(batch_id), self.caller.tenant, after, limit)

    async def batch_events(
        self, batch_id: str, *, after: int = 0
    ) -> AsyncIterator[tuple[int, BatchRow | Batch | Deleted]]:
        """Rows as they come, numbered in that order and without the first `after`; how far the batch is
        whenever that has changed; both at most twice a second. At last the batch that is over or deleted."""
        batch, told = await self.batch(batch_id), tuple[object, ...]()
        while True:
            last = await self.batches.last_row(batch_id)
            while after < last and (rows := await self.batches.arrived(batch_id, after)):
                for row in rows:
                    after += 1
                    if row is not None:
                        yield after, row
            now = (batch.state, batch.completed, batch.failed, batch.paused_at, batch.waits_until)
            if now != told or batch.state in BATCH_OVER:
                told = now
                yield after, batch
            if batch.state in BATCH_OVER:
                return
            await asyncio.sleep(NEWS_SECONDS)
            try:
                batch = await self.batch(batch_id)
            except NotFound:
                yield after, Deleted(batch)
                return

    async def cancel_batch(self, batch_id: str) -> Batch:
        """Running items end, no further one begins; raises Conflict (`batch_over`)."""
        step = await self.batches.cancel(_batch(batch_id), self.caller.tenant)
        batch = await self.batch(batch_id)
        if step:
            await self._offer(batch)
        return batch

    async def pause_batch(self, batch_id: str) -> Batch:
        """Let no further item begin; the batch's time goes on. Raises Conflict (`batch_not_running`)."""
        await self.batches.pause(_batch(batch_id), self.caller.tenant, pause=True)
        return await self.batch(batch_id)

    async def resume_batch(self, batch_id: str) -> Batch:
        """Let a paused batch go on; raises Conflict (`batch_not_running`)."""
        await self.batches.pause(_batch(batch_id), self.caller.tenant, pause=False)
        return await self._offered(batch_id)

    async def retry_batch(self, batch_id: str) -> Batch:
        """Run again what has failed, or was never run; Conflict (`batch_running`, `batch_failed`, …)."""
        await self.batches.retry(_batch(batch_id), self.caller.tenant)
        return await self._offered(batch_id)

    async def delete_batch(self, batch_id: str) -> None:
        """Forget a batch that is over, its rows and its calls; raises Conflict (`batch_running`)."""
        await self.batches.delete(_batch(batch_id), self.caller.tenant)
        await self._share.leave(batch_id, self.caller.tenant, for_good=True)

    async def forget_answers(self) -> int:
        """Erase the answers that are kept for later batches; how many there were."""
        return await self.answers.forget(self.caller.tenant)

    async def _offered(self, batch_id: str) -> Batch:
        batch = await self.batch(batch_id)
        await self._offer(batch)
        return batch

    async def _offer(self, batch: Batch) -> None:
        """Let a batch take part in the sharing of slots, and wake as many workers as can help."""
        await self._share.join(batch.batch_id, self.caller.tenant, expires_at=batch.expires_at)
        self._waker.wake(batch.batch_id, times=await self.batches.waiting(batch.batch_id))


def _batch(identifier: str) -> str:
    if not is_batch_id(identifier):
        raise NotFound(f"batch {identifier[:64]!r} does not exist")
    return identifier
