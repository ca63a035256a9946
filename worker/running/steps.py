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
from worker.contract.batch.lines import Lines, Splitter, answer_line
from worker.contract.batch.steps import BatchSteps, Ending
from worker.contract.errors import NotFound, Unavailable
from worker.contract.keys import output_file_id
from worker.contract.schemas import BatchRow, Lane, TurnFailure
from worker.patience import patiently
from worker.running.sharing import Offers
from worker.suspects.quarantine import Wakes
from worker.upkeep.leases import Held

READ_BYTES: Final = 2 * 1024 * 1024
"""About as much of the results is held at a time."""
FIRST_ROWS: Final = 20
MOST_ROWS: Final = 1_000
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
        """Take a step to its end or hand it back; one that fails for no known reason keeps its lease."""
        task = asyncio.create_task(self._validate(step) if step.start == VALIDATE else self._finalize(step))
        held.follow(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or isinstance(error, Unavailable):
            await self._hand_back(step)
        elif error is not None:
            _log.error("step_failed", exc_info=error, extra={"batch": step.batch_id})
            metrics.TURNS.labels(_LANE, "failed").inc()

    async def _validate(self, step: Slice) -> None:
        lines, splitter, offset = Lines(step.defaults, self._foreign), Splitter(), 0
        assert step.defaults.input_file_id is not None
        pieces = self._files.read(step.defaults.input_file_id, step.tenant)
        try:
            async for piece in pieces:
                offset = await self._add(step, offset, lines, splitter.feed(piece))
                if lines.stopped:
                    break
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
        start, size = 0, FIRST_ROWS
        while start < ending.total:
            indexes = range(start, min(start + size, ending.total))
            rows = await self._rows(step, ending, indexes)
            lines = [(row.status, answer_line(step.batch_id, row)) for row in rows]
            await answers.write(b"".join(line for status, line in lines if status == "ok"))
            await errors.write(b"".join(line for status, line in lines if status == "error"))
            written = sum(len(line) for _, line in lines)
            start, size = indexes.stop, max(1, min(MOST_ROWS, READ_BYTES * len(lines) // max(1, written)))

    async def _rows(self, step: Slice, ending: Ending, indexes: range) -> list[BatchRow]:
        """The rows of these lines; of those that were never run, why."""
        rows = await self._batches.read_rows(step.batch_id, indexes)
        if None not in rows:
            return [row for row in rows if row is not None]
        ids = await self._steps.ids(step, indexes.start, indexes.stop - 1)
        failure = _NEVER_RUN[ending.ends_as]
        return [
            row or BatchRow(index=index, id=own or None, status="error", error=failure, attempts=0)
            for index, own, row in zip(indexes, ids, rows, strict=True)
        ]

    def _file(self, step: Slice, ending: Ending, kind: str) -> Output:
        file_id = output_file_id(step.tenant, step.batch_id, ending.run, kind)
        expiry = step.defaults.output_expires_after
        lives = None if expiry is None else float(expiry.seconds)
        return Output(self._files, step.tenant, file_id, f"{step.batch_id}_{kind}.jsonl", lives)

    async def _hand_back(self, step: Slice) -> None:
        try:
            answer = await self._batches.release(step.batch_id, step.start, step.fence)
        except Unavailable:
            _log.warning("step_not_handed_back", extra={"batch": step.batch_id})
            return
        if answer == "queued":
            metrics.TURNS.labels(_LANE, "handed_back").inc()
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
