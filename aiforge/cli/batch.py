"""`aiforge batch run`: questions from a file, answers into a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from aiforge.cli import answers, questions
from aiforge.cli.answers import Answers
from aiforge.cli.arguments import MaxTokensOption, ModelOption, whole
from aiforge.cli.connect import connected
from aiforge.cli.errors import CommandError, UsageError
from aiforge.cli.output import as_json, duration, note
from aiforge.cli.progress import Tally, shown
from aiforge.cli.questions import Question, Questions
from aiforge.cli.signals import Ended, undisturbed
from aiforge.client import Batch, Client, ClientError, Item
from aiforge.client.options import Options

BATCH_ITEMS: Final = 50_000
"""The most that the service takes in one batch."""
BATCH_BYTES: Final = 32 * 1024 * 1024
POLL_SECONDS: Final = 0.2
CANCEL_SECONDS: Final = 20.0
AWAY_SECONDS: Final = 120.0
"""How long the service may be away while its batch runs: a restart must not end an overnight job."""


def run(
    source: Annotated[str, typer.Argument(metavar="IN", help="JSONL or CSV by its suffix; - is stdin.")],
    *,
    target: Annotated[
        str, typer.Option("--output", "-o", metavar="OUT", help="JSONL or CSV by its suffix; - is stdout.")
    ] = "-",
    column: Annotated[str | None, typer.Option(help="The column that holds the question.")] = None,
    id_column: Annotated[str | None, typer.Option(help="The column that holds your own id.")] = None,
    system_prompt: Annotated[
        str | None, typer.Option(help="Instructions for every question.", callback=whole)
    ] = None,
    model: ModelOption = None,
    max_tokens: MaxTokensOption = None,
) -> None:
    """Answer every question of a file.

    Ctrl-C cancels the batch and writes what is there. Exit code 1 when an item failed.
    """
    found = questions.read(source, column, id_column)
    _must_be_apart(source, target)
    options = Options(system_prompt=system_prompt, model=model, max_tokens=max_tokens)
    with connected(start=True) as client:
        tally = answer_all(client, found, target, options)
    if tally.failed:
        raise CommandError(f"{tally.failed} of {tally.total} failed; error_code says why")


def _must_be_apart(source: str, target: str) -> None:
    if target == "-":
        return
    if not Path(target).resolve().parent.is_dir():
        raise UsageError(f"{target}: there is no such folder")
    if source != "-" and Path(source).resolve() == Path(target).resolve():
        raise UsageError(f"{target}: input and output are the same file")


def answer_all(client: Client, found: Questions, target: str, options: Options) -> Tally:
    """Answer all and write every row to the target; the sums. An early end cancels what still runs."""
    job = Job(client, found.rows, options)
    with answers.writing(target, questions.format_of(target) or found.format) as out:
        try:
            job.submit()
            job.follow(out)
        except (Ended, CommandError, ClientError):
            with undisturbed() as hurry:
                job.cancel(out, hurry)
            note(f"cancelled: {out.written} of {len(found.rows)} rows are in {_name(target)}", style="yellow")
            raise
    note(f"{job.tally.done} rows in {duration(job.tally.elapsed)} → {_name(target)}")
    return job.tally


def _name(target: str) -> str:
    return "stdout" if target == "-" else target


@dataclass(slots=True)
class Part:
    """One batch of the service: a slice of the questions, and which of its rows are written."""

    first: int
    questions: Sequence[Question]
    batch: Batch
    written: int = 0
    next_row: int = 0

    @property
    def has_news(self) -> bool:
        return self.batch.request_counts.done > self.written and self.next_row < len(self.questions)


class Job:
    """All batches of one run."""

    def __init__(self, client: Client, rows: Sequence[Question], options: Options) -> None:
        self.tally = Tally(len(rows))
        self._client = client
        self._rows = rows
        self._options = options
        self._parts: list[Part] = []

    def submit(self) -> None:
        for first, rows in split(self._rows):
            items = [Item(message=row.text, id=row.id) for row in rows]
            batch = self._client.submit_batch(items, **self._options)
            self._parts.append(Part(first, rows, batch))
            note(f"batch {batch.id}: {len(rows)} items")

    def follow(self, out: Answers) -> None:
        """Until every row is written; raises ClientError when the service is away for too long."""
        with shown(self.tally) as lines:
            answered_at = time.monotonic()
            while self._running():
                time.sleep(POLL_SECONDS)
                try:
                    self._poll()
                    self._take(out)
                    answered_at = time.monotonic()
                except ClientError as error:
                    if not error.retryable or time.monotonic() - answered_at > AWAY_SECONDS:
                        raise
                if lines:
                    lines.say()
            self.tally.end()
        for part in self._parts:
            if part.written < len(part.questions):
                raise CommandError(f"batch {part.batch.id} is {part.batch.status}, by somebody else's wish")

    def cancel(self, out: Answers, hurried: Callable[[], bool]) -> None:
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
                    self._take_from(part, out)
        out.flush()

    def _running(self) -> list[Part]:
        return [part for part in self._parts if not part.batch.ended]

    def _poll(self) -> None:
        for part in self._running():
            part.batch = self._client.batch(part.batch.id)
        self.tally.update(part.batch for part in self._parts)

    def _take(self, out: Answers) -> None:
        """Write the rows that are there, in input order."""
        for part in self._parts:
            if part.has_news:
                self._take_from(part, out)
            if part.next_row < len(part.questions):
                break
        out.flush()

    def _take_from(self, part: Part, out: Answers) -> None:
        for row in self._client.results(part.batch.id, after=part.next_row):
            out.write(part.first + row.index, part.questions[row.index], row)
            part.next_row = row.index + 1
            part.written += 1


def split(rows: Sequence[Question]) -> Iterator[tuple[int, Sequence[Question]]]:
    """Slices that the service takes as one batch each, with the index of their first row."""
    first = size = 0
    for index, row in enumerate(rows):
        weight = len(as_json(row.text))
        if index - first == BATCH_ITEMS or (size + weight > BATCH_BYTES and index > first):
            yield first, rows[first:index]
            first, size = index, 0
        size += weight
    yield first, rows[first:]
