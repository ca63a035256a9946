"""Runs the steps of a batch that is a file: its lines are checked and stored, its results written to files.

Nothing here holds all of a batch. A step that dies is run again from its start, and whatever it has stored
already is not stored twice.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from worker import metrics
from worker.contract.batch.batches import VALIDATE, BatchStore, Slice
from worker.contract.batch.files import FileStore, Upload
from worker.contract.batch.line_schemas import LineError, LineErrors
from worker.contract.batch.lines import Lines, Splitter, answer_line
from worker.contract.batch.rows import PAGE
from worker.contract.batch.steps import BatchSteps, Ending
from worker.contract.errors import ContractError, NotFound, Unavailable
from worker.contract.ids import output_file_id
from worker.contract.schemas import BatchRow, Lane, TurnFailure
from worker.contract.wakeups.wake import Wakes
from worker.patience import patiently
from worker.upkeep.leases import Held
from worker.upkeep.offers import Offers

AWAY_SECONDS: Final = 5.0
"""How long a step waits for a store that cannot be reached."""
_NEVER_RUN: Final = {
    "expired": TurnFailure("batch_expired", "the batch's time was over before this was answered"),
    "cancelled": TurnFailure("batch_cancelled", "the batch was cancelled before this was answered"),
}
_LANE: Final = Lane.BATCH.value
_log = logging.getLogger(__name__)


class Steps:
    """Runs steps that are held."""

    def __init__(self, *, batches: BatchStore, waker: Wakes, foreign: str | None) -> None:
        """`foreign` is the provider, where it does not speak OpenAI's wire format."""
        self._foreign = foreign
        self._batches = batches
        self._steps = BatchSteps(batches)
        self._files = FileStore(batches.connection, batches.settings)
        self._offers = Offers(batches, waker)

    async def run(self, step: Slice, held: Held) -> None:
        """Take a step to its end or hand it back; one that fails for no known reason keeps its lease, and is
        run again when that ends. A file that cannot be validated time and again makes its batch fail."""
        task = asyncio.create_task(self._validate(step) if step.start == VALIDATE else self._finalize(step))
        held.follow(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or isinstance(error, Unavailable):
            await self._hand_back(step, again_in=None if task.cancelled() else AWAY_SECONDS)
        elif error is not None:
            _log.error("step_failed", exc_info=error, extra={"batch": step.batch_id})
            metrics.TURNS.labels(_LANE, "failed").inc()
            if step.start == VALIDATE and step.attempt > self._batches.settings.suspect_after:
                await self._give_up(step, error)

    async def _give_up(self, step: Slice, error: BaseException) -> None:
        known = isinstance(error, ContractError)
        why = str(error) if known else "the worker met an error of its own while it read the file"
        wrong = LineErrors(total=1, data=[LineError(code="internal_error", message=why)])
        await patiently(lambda: self._steps.begin(step, 0, wrong))

    async def _validate(self, step: Slice) -> None:
        lines, splitter, offset = Lines(step.defaults, self._foreign), Splitter(), 0
        assert step.defaults.input_file_id is not None
        pieces = self._files.read(step.defaults.input_file_id, step.tenant)
        try:
            async for piece in pieces:
                offset = await self._add(step, offset, lines, splitter.feed(piece))
                if lines.stopped:
                    break
                if not await patiently(lambda: self._steps.wanted(step)):
                    await patiently(lambda: self._steps.begin(step, 0, None))
                    return
            offset = await self._add(step, offset, lines, splitter.close())
        except NotFound:
            lines.refuse("input_file_gone", "the input file was deleted")
        state = await patiently(lambda: self._steps.begin(step, offset, lines.failed, turns=lines.turns))
        if state in ("in_progress", "finalizing"):
            await self._offers.offer(step.batch_id)
        elif state == "missing":
            await self._hand_back(step)

    async def _add(self, step: Slice, offset: int, lines: Lines, found: list[bytes]) -> int:
        # A megabyte of lines takes tens of milliseconds, in which the loop has turns to serve.
        entries, rows = await asyncio.to_thread(lines.take, found)
        return await patiently(lambda: self._batches.add_items(step.batch_id, offset, entries, rows))

    async def _finalize(self, step: Slice) -> None:
        ending = await self._steps.ending(step)
        answers = self._file(step, ending, "output")
        errors = self._file(step, ending, "error")
        try:
            await self._write(step, ending, answers, errors)
            output_id, error_id = await answers.seal(), await errors.seal()
        except BaseException:
            await answers.abandon()
            await errors.abandon()
            raise
        await patiently(lambda: self._steps.close(step, output_id, error_id))

    async def _write(self, step: Slice, ending: Ending, answers: Output, errors: Output) -> None:
        start = 0
        while start < ending.total:
            rows = await self._rows(step, ending, range(start, min(start + PAGE, ending.total)))
            lines = [(row.status, answer_line(step.batch_id, row)) for row in rows]
            await answers.write(b"".join(line for status, line in lines if status == "ok"))
            await errors.write(b"".join(line for status, line in lines if status == "error"))
            start += len(rows)

    async def _rows(self, step: Slice, ending: Ending, indexes: range) -> list[BatchRow]:
        """The rows of the first of these lines; of those that were never run, why."""
        rows = await self._batches.read_rows(step.batch_id, indexes)
        if None not in rows:
            return [row for row in rows if row is not None]
        ids = await self._steps.ids(step, indexes.start, indexes.start + len(rows) - 1)
        failure = _NEVER_RUN[ending.ends_as]
        return [
            row or BatchRow(index=index, id=own or None, status="error", error=failure, attempts=0)
            for index, own, row in zip(indexes, ids, rows, strict=False)
        ]

    def _file(self, step: Slice, ending: Ending, kind: str) -> Output:
        file_id = output_file_id(step.tenant, step.batch_id, ending.run, kind)
        expiry = step.defaults.output_expires_after
        lives = None if expiry is None else float(expiry.seconds)
        return Output(self._files, step.tenant, file_id, f"{step.batch_id}_{kind}.jsonl", lives)

    async def _hand_back(self, step: Slice, *, again_in: float | None = None) -> None:
        """`again_in`: in how many seconds it is given to a worker again, None for at once."""
        try:
            answer = await self._batches.release(step.batch_id, step.start, step.fence, again_in=again_in)
        except Unavailable:
            _log.warning("step_not_handed_back", extra={"batch": step.batch_id})
            return
        if answer == "queued":
            metrics.TURNS.labels(_LANE, "handed_back").inc()
            if again_in is None:
                await self._offers.offer(step.batch_id)


class Output:
    """A file of results; there is none when there are no results of its kind."""

    def __init__(
        self, files: FileStore, tenant: str, file_id: str, filename: str, ttl_seconds: float | None
    ) -> None:
        self._files = files
        self._tenant = tenant
        self._file_id = file_id
        self._filename = filename
        self._ttl_seconds = ttl_seconds
        self._upload: Upload | None = None

    async def write(self, data: bytes) -> None:
        if not data:
            return
        if self._upload is None:
            self._upload = await self._files.begin(
                self._tenant,
                self._filename,
                "batch_output",
                ttl_seconds=self._ttl_seconds,
                file_id=self._file_id,
            )
        await self._upload.write(data)

    async def seal(self) -> str | None:
        """The id of the file, None when nothing was written."""
        return None if self._upload is None else (await self._upload.seal()).file_id

    async def abandon(self) -> None:
        if self._upload is not None:
            await self._upload.abandon()
