"""What the client for plain code asks about batches and their files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Unpack

from aiforge.client import batch_calls, calls, file_calls
from aiforge.client.file_calls import File
from aiforge.client.options import BatchOptions, FileOptions
from aiforge.client.results import Batch, Item, Row
from aiforge.client.sender import Sender
from aiforge.client.stream import BatchReading


class BatchMethods(Sender):
    """Batches, their rows, and files."""

    def submit_batch(
        self,
        items: Iterable[str | Item],
        *,
        idempotency_key: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> Batch:
        return self._send(calls.submit_batch(items, options, idempotency_key))

    def submit_batch_file(
        self,
        input_file_id: str,
        *,
        endpoint: str = "/v1/chat/completions",
        completion_window: str = "24h",
        idempotency_key: str | None = None,
        **options: Unpack[FileOptions],
    ) -> Batch:
        """Run the requests of a file, one a line; its results are files, too."""
        key = idempotency_key
        made = batch_calls.submit_file(input_file_id, endpoint, completion_window, options, key)
        return self._send(made)

    def batches(self) -> Iterator[Batch]:
        """All batches, the newest first."""
        after, more = None, True
        while more:
            page = self._send(batch_calls.latest(after))
            yield from page.data
            more = page.has_more
            after = page.data[-1].id if page.data else after

    def batch(self, batch_id: str) -> Batch:
        return self._send(calls.batch(batch_id))

    def results(self, batch_id: str, *, after: int = 0) -> Iterator[Row]:
        """Rows in input order from index `after` on, up to the first unfinished one while the batch runs."""
        while page := self._send(calls.results(batch_id, after, calls.PAGE_ROWS)):
            yield from page
            after = page[-1].index + 1

    def batch_events(self, batch_id: str, *, after: int = 0) -> Iterator[tuple[int, Row | Batch]]:
        """Rows as they come, numbered in that order and without the first `after`, and the batch whenever
        its counts have changed; the last one is the batch that is over. A broken connection is resumed."""
        yield from self._events(BatchReading(batch_id, after, self.base_url))

    def cancel_batch(self, batch_id: str) -> Batch:
        return self._send(calls.cancel_batch(batch_id))

    def pause_batch(self, batch_id: str) -> Batch:
        """Let no further item begin; ConflictError unless it is in progress."""
        return self._send(batch_calls.steer(batch_id, "pause"))

    def resume_batch(self, batch_id: str) -> Batch:
        """Let a paused batch go on."""
        return self._send(batch_calls.steer(batch_id, "resume"))

    def retry_batch(self, batch_id: str) -> Batch:
        """Run again what has failed or was never run; ConflictError while it runs, or when nothing has."""
        return self._send(batch_calls.steer(batch_id, "retry"))

    def delete_batch(self, batch_id: str) -> None:
        """Forget a batch that is over; its files stay."""
        self._send(batch_calls.delete(batch_id))

    def forget_answers(self) -> int:
        """Erase the answers that are kept for later batches; how many there were."""
        return self._send(batch_calls.forget_answers())

    def upload(
        self, path: str | PathLike[str], *, filename: str | None = None, expires_after: int | None = None
    ) -> File:
        """Send a file of requests, read while it is sent; it lives so many seconds. Raises OSError, too."""
        with file_calls.upload(Path(path), filename, expires_after) as call:
            return self._send(call)

    def download(self, file_id: str) -> Iterator[bytes]:
        """A file's bytes, piece by piece."""
        yield from self._bytes(file_calls.content(file_id))

    def files(self) -> Iterator[File]:
        """All files, the newest first."""
        after, more = None, True
        while more:
            page = self._send(file_calls.latest(after))
            yield from page.data
            more = page.has_more
            after = page.data[-1].id if page.data else after

    def file(self, file_id: str) -> File:
        return self._send(file_calls.read(file_id))

    def delete_file(self, file_id: str) -> None:
        self._send(file_calls.delete(file_id))
