"""The batches of one run: posted, followed, and their rows written beside their questions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal
from typing import Any, Final, cast

from aiforge.cli import answers
from aiforge.cli.errors import CommandError
from aiforge.cli.output import as_json, duration, note
from aiforge.cli.progress import Tally, shown
from aiforge.cli.runs import Run
from aiforge.cli.signals import Ended, undisturbed
from aiforge.client import Batch, Client, ClientError, Item
from aiforge.client.options import BatchOptions
from aiforge.questions.output import Output
from aiforge.questions.question import Question

BATCH_ITEMS: Final = 50_000
"""The most that the service takes in one batch."""
BATCH_BYTES: Final = 8 * 1024 * 1024
"""Of questions in one batch: a few times that is held while it is sent."""
POLL_SECONDS: Final = 0.2
POLL_SECONDS_A_BATCH: Final = 0.01
"""Many batches are looked at less often."""
CANCEL_SECONDS: Final = 20.0
AWAY_SECONDS: Final = 120.0
"""How long the service may be away while its batch runs: a restart must not end an overnight job."""
_BROKEN_OFF: Final = frozenset({"failed", "cancelling", "cancelled", "expired"})
"""Statuses of a batch that nobody should go on with."""
_NAMED: Final = 3
"""How many batches are named where many run."""
_FINEST: Final = Decimal("1e-12")


def answer_all(client: Client, out: Output, run: Run, options: BatchOptions, *, stays: bool = False) -> Tally:
    """Answer what has no answer and write every row; the sums.

    An early end leaves the batches at work if the service `stays`, else it cancels them.
    """
    job = Job(client, out, run, options)
    out.flush()
    run.begin(out.first_new)
    try:
        job.submit()
        job.follow()
    except (Ended, CommandError, ClientError) as end:
        with undisturbed() as hurry:
            if stays and (isinstance(end, Ended) or (isinstance(end, ClientError) and end.retryable)):
                _detach(job)
            else:
                _cancel(job, hurry)
        raise
    finish(out, run)
    note(f"{job.tally.done} rows in {duration(job.tally.elapsed)} → {run.name}")
    return job.tally


def finish(out: Output, run: Run, *, over: bool = True) -> None:
    """Put the output in order and say where what failed is; `over` when no batch is at work any more."""
    errors = out.finish()
    if over:
        run.end()
    if errors is not None:
        note(f"what failed is in {errors.name}, too")


def _detach(job: Job) -> None:
    job.out.flush()
    if not job.batches:
        note("detached before a batch was posted; the same command goes on", style="yellow")
        return
    note(f"detached: {job.rows}, and the service goes on with the rest", style="yellow")
    if job.run.is_file:
        note(f"come back with the same command, which writes the rest into {job.run.name}", style="yellow")
    into = "" if job.run.is_file else " -o OUT"
    for batch in job.batches[:_NAMED]:
        note(f"aiforge batch watch {batch.id}{into}; to end it: aiforge batch cancel {batch.id}")
    if len(job.batches) > _NAMED:
        note(f"and {len(job.batches) - _NAMED} more: aiforge batch ls")


def _cancel(job: Job, hurry: Callable[[], bool]) -> None:
    note("cancelling; once more hurries it")
    job.cancel(hurry)
    finish(job.out, job.run, over=bool(job.batches) and all(batch.ended for batch in job.batches))
    again = "; the same command goes on from there" if job.run.is_file else ""
    note(f"cancelled: {job.rows}{again}", style="yellow")


@dataclass(slots=True)
class Part:
    """One batch of the service: which of the asked questions it has, and which of its rows are taken."""

    first: int
    size: int
    batch: Batch
    taken: int = 0
    next_row: int = 0

    @property
    def has_news(self) -> bool:
        return self.batch.request_counts.done > self.taken and self.next_row < self.size


class Job:
    """All batches of one run. The questions are read once to be sent and once more beside their answers."""

    def __init__(self, client: Client, out: Output, run: Run, options: BatchOptions) -> None:
        self.tally = Tally(out.count - out.kept)
        self.out = out
        self.run = run
        self._client = client
        self._options = options
        self._parts: list[Part] = []
        self._asked = enumerate(out.pending())

    @property
    def rows(self) -> str:
        """How many rows are where, for people."""
        return f"{self.out.kept + self.out.written} of {self.out.count} rows are in {self.run.name}"

    @property
    def batches(self) -> list[Batch]:
        return [part.batch for part in self._parts]

    def submit(self) -> None:
        """Post what is to be asked; what a broken-off command of this run has posted is there already."""
        first = 0
        asked = sum(1 for _ in self.out.pending()) if self._options.get("max_cost") else 0
        for items in split(question for _, question in self.out.pending()):
            options = share(self._options, len(items), asked)
            batch = self._posted(items, options)
            self._parts.append(Part(first, len(items), batch))
            first += len(items)
            known = self.run.knows(batch.id)
            note(f"goes on with batch {batch.id}" if known else f"batch {batch.id}: {len(items)} items")
        self.tally.total = first
        self.tally.begin(self.batches)

    def _posted(self, items: list[Item], options: BatchOptions) -> Batch:
        """The batch of this run that has these items; a new one where that was broken off."""
        key = self.run.key(items, cast(dict[str, Any], options))
        batch = self._client.submit_batch(items, idempotency_key=key, **options)
        while batch.status in _BROKEN_OFF:
            batch = self._client.submit_batch(items, idempotency_key=f"{key}-{batch.id}", **options)
        return batch

    def follow(self) -> None:
        """Until every row is written; raises ClientError when the service is away for too long."""
        with shown(self.tally) as lines:
            answered_at = time.monotonic()
            while self._running() or any(part.has_news for part in self._parts):
                try:
                    self._take()
                    if self._running():
                        time.sleep(max(POLL_SECONDS, POLL_SECONDS_A_BATCH * len(self._parts)))
                    self._poll()
                    answered_at = time.monotonic()
                except ClientError as error:
                    if not error.retryable or time.monotonic() - answered_at > AWAY_SECONDS:
                        raise
                    time.sleep(POLL_SECONDS)
                if lines:
                    lines.say()
            self.tally.end()
        for part in self._parts:
            if part.taken < part.size:
                raise CommandError(f"batch {part.batch.id} is {part.batch.status}, by somebody else's wish")

    def cancel(self, hurried: Callable[[], bool]) -> None:
        """Cancel what runs, wait a little for its end and write what is there."""
        deadline = time.monotonic() + CANCEL_SECONDS
        with suppress(ClientError):
            for part in self._running():
                part.batch = self._client.cancel_batch(part.batch.id)
            while self._running() and time.monotonic() < deadline and not hurried():
                time.sleep(POLL_SECONDS)
                self._poll()
            for part in self._parts:
                if part.has_news:
                    self._take_from(part)
        self.out.flush()

    def _running(self) -> list[Part]:
        return [part for part in self._parts if not part.batch.ended]

    def _poll(self) -> None:
        for part in self._running():
            part.batch = self._client.batch(part.batch.id)
        self.tally.update(self.batches)

    def _take(self) -> None:
        """Write the rows that are there, in input order."""
        for part in self._parts:
            if part.has_news:
                self._take_from(part)
            if part.next_row < part.size and not part.batch.ended:
                break
        self.out.flush()

    def _take_from(self, part: Part) -> None:
        whole = part.batch.ended
        for row in self._client.results(part.batch.id, after=part.next_row):
            place, question = self._question(part.first + row.index)
            if not self.out.has(place):
                self.out.write(place, question, answers.record(row))
            uses_tools = question.options.get("tools") or self._options.get("tools")
            self.tally.retried += row.attempts > 1 and not uses_tools
            part.next_row = row.index + 1
            part.taken += 1
        if whole:
            part.next_row = part.size

    def _question(self, number: int) -> tuple[int, Question]:
        """What was asked as the number-th; rows come in that order, some may be left out."""
        return next(asked for index, asked in self._asked if index == number)


def share(options: BatchOptions, size: int, asked: int) -> BatchOptions:
    """The options of one batch of several: of the most that all may cost it has its part."""
    most = options.get("max_cost")
    if not most:
        return options
    part = (Decimal(most) * size / asked).quantize(_FINEST, rounding=ROUND_DOWN)
    return {**options, "max_cost": f"{part.normalize():f}"}


def split(rows: Iterable[Question]) -> Iterator[list[Item]]:
    """Items that the service takes as one batch each."""
    items: list[Item] = []
    size = 0
    for row in rows:
        weight = len(as_json(row.message))
        if items and (len(items) == BATCH_ITEMS or size + weight > BATCH_BYTES):
            yield items
            items, size = [], 0
        items.append(Item(message=row.message, id=row.id, **row.options))
        size += weight
    if items:
        yield items
