"""The batches of one run: posted, followed, and their rows written beside their questions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar, cast

from aiforge.cli import answers
from aiforge.cli.connect import AWAY_SECONDS, is_gone
from aiforge.cli.errors import CommandError
from aiforge.cli.output import duration, note
from aiforge.cli.parts import WITHOUT_END, Part
from aiforge.cli.progress import Tally, say_paused, shown
from aiforge.cli.runs import Noted, Posting, Run
from aiforge.cli.split import must_go_in_order, share, split
from aiforge.client import (
    BadRequestError,
    Batch,
    Client,
    ClientError,
    ConflictError,
    NotFoundError,
    Row,
)
from aiforge.client.options import BatchOptions
from aiforge.questions.output import Output
from aiforge.questions.past import NOT_ASKED
from aiforge.questions.question import Question

_PAGE: Final = 1000
"""How many rows are held, and put into the input's order, at a time."""
T = TypeVar("T")
POLL_SECONDS: Final = 0.2
POLL_SECONDS_A_BATCH: Final = 0.01
"""Many batches are looked at less often."""
CANCEL_SECONDS: Final = 20.0
SILENT_SECONDS: Final = 5.0
"""After so long without an answer nobody says that the service goes on."""
_BROKEN_OFF: Final = frozenset({"failed", "cancelling", "cancelled", "expired"})
"""Statuses of a batch that nobody should go on with."""
_ITEM: Final = re.compile(r"items\[([0-9]+)\]")


class Job:
    """All batches of one run, those of earlier commands, too.

    The questions are read to find those without an answer, to send them, and beside their answers.
    """

    def __init__(
        self, client: Client, out: Output, run: Run, options: BatchOptions, *, retry_failed: bool = False
    ) -> None:
        self.tally = Tally(out.count - out.kept)
        self.out = out
        self.run = run
        self._answered_at = time.monotonic()
        self._met = run.has_posted
        """Whether the service was there for this run, or for an earlier command of it."""
        self._client = client
        self._options = options
        self._retry_failed = retry_failed
        self._parts: list[Part] = []
        self._read = enumerate(out.questions)
        self._read_up_to = 0

    @property
    def rows(self) -> str:
        """How many rows are where, for people."""
        where = f"are in {self.run.name}" if self.run.is_file else "went to stdout"
        return f"{self.out.kept + self.out.saved} of {self.out.count} rows {where}"

    @property
    def batches(self) -> list[Batch]:
        """Those of which rows are to come."""
        return [part.batch for part in self._parts if part.next_row < part.size]

    @property
    def is_away(self) -> bool:
        """Whether the service has not answered lately."""
        return time.monotonic() - self._answered_at > SILENT_SECONDS

    @property
    def has_posted(self) -> bool:
        return bool(self._parts)

    def answer(self) -> None:
        """Take in what earlier commands have posted, ask the rest, and follow all until every row is written.

        What an earlier batch was not asked to the end is asked when that is over. Raises ClientError when
        the service is away for too long.
        """
        if self.run.has_posted:
            self._take_in()
        for _ in range(2):
            if not self.out.is_whole:
                self._submit()
                self._follow()

    def _take_in(self) -> None:
        """Take the rows that earlier batches have; end those at work that nobody wants, or that may cost
        more than this run may."""
        for noted in self.run.noted():
            try:
                batch = self._patiently(partial(self._known, noted))
            except (NotFoundError, BadRequestError):
                note(f"batch {noted.id or ''} is gone; what it was asked is asked anew", style="yellow")
                self.run.forget(noted.number)
            else:
                self._parts.append(Part(noted.number, batch, is_old=True))
        self.run.match((place, self.out.key(question)) for place, question in self.out.pending())
        for part in self._parts:
            first = self.run.first(part.number)
            part.next_row = part.size if first is None else first
            if not part.batch.ended and (first is None or self._left() < 0):
                why = (
                    "nobody wants its rows any more" if first is None else "it may cost more than --max-cost"
                )
                note(f"cancels batch {part.batch.id}: {why}", style="yellow")
                self._stop([part])
            elif first is not None and part.batch.status not in _BROKEN_OFF:
                note(f"goes on with batch {part.batch.id}")
                say_paused(part.batch)
            part.is_followed = first is not None and not part.batch.ended
        self._patiently(self._take)

    def _left(self) -> Decimal:
        """USD that batches of this run may still cost."""
        most = self._options.get("max_cost")
        if most is None:
            return WITHOUT_END
        return Decimal(most) - sum((part.most for part in self._parts), Decimal(0))

    def _open(self) -> Iterator[tuple[int, Question]]:
        """What has no row and is asked by no batch."""
        return self.run.without(self.out.pending())

    def _submit(self) -> None:
        """Post what is to be asked, in one batch or several."""
        if self.out.conversations:
            if self._running():
                return  # its turns go first
            must_go_in_order(question for _, question in self._open())
        options, count = self._options, 0
        if options.get("max_cost") is not None:
            options = {**options, "max_cost": f"{max(self._left(), Decimal(0)):f}"}
            count = sum(1 for _ in self._open())
        asked: list[tuple[int, bytes]] = []
        for items in split(self._noting(asked)):
            posting = Posting(items, cast(dict[str, Any], share(options, len(items), count)))
            places = asked[: len(items)]
            del asked[: len(items)]
            noted = self.run.note(posting, places)
            try:
                batch = self._patiently(partial(self._posted, noted))
            except BadRequestError as error:
                raise self._with_line(error, places) from None
            self._parts.append(Part(noted.number, batch))
            note(f"batch {batch.id}: {len(items)} items")

    def _noting(self, asked: list[tuple[int, bytes]]) -> Iterator[Question]:
        for place, question in self._open():
            asked.append((place, self.out.key(question)))
            yield question

    def _with_line(self, error: BadRequestError, asked: list[tuple[int, bytes]]) -> Exception:
        """What the service refuses in an item, said of its line."""
        found = _ITEM.match(error.param or "")
        if found is None:
            return error
        line = self._question(asked[int(found[1])][0]).line
        return CommandError(f"line {line} cannot be asked: {error}")

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask again while the service is away, as one is that starts anew; not if it never was there."""
        self._answered_at, told = time.monotonic(), False
        while True:
            try:
                answer = ask()
            except ClientError as error:
                if not self._met or is_gone(error, self._answered_at):
                    raise
                if not told:
                    note(f"{error}; asks again for up to {duration(AWAY_SECONDS)}", style="yellow")
                told = True
                time.sleep(POLL_SECONDS)
            else:
                self._met = True
                return answer

    def _known(self, noted: Noted) -> Batch:
        return self._posted(noted) if noted.id is None else self._client.batch(noted.id)

    def _posted(self, noted: Noted) -> Batch:
        """The batch of this run that was noted; it is posted unless it was before."""
        assert noted.posting is not None
        options = cast(BatchOptions, noted.posting.options)
        try:
            batch = self._client.submit_batch(noted.posting.items, idempotency_key=noted.token, **options)
        except BadRequestError:
            self.run.forget(noted.number)
            raise
        self.run.posted(noted, batch.id)
        return batch

    def _follow(self) -> None:
        """Until every batch is over and its rows are written."""
        followed = [part for part in self._running() if part.batch.status not in _BROKEN_OFF]
        self.tally.total = sum(part.size for part in self._parts if part.is_followed)
        self.tally.begin(self._followed())
        with shown(self.tally) as lines:
            self._answered_at = time.monotonic()
            while self._running() or any(part.has_news for part in self._parts):
                try:
                    self._take()
                    if self._running():
                        time.sleep(max(POLL_SECONDS, POLL_SECONDS_A_BATCH * len(self._parts)))
                    self._poll()
                    self._answered_at = time.monotonic()
                except ClientError as error:
                    if is_gone(error, self._answered_at):
                        raise
                    time.sleep(POLL_SECONDS)
                if lines:
                    lines.say()
            self.tally.end()
        for part in followed:
            if part.batch.status != "completed":
                raise CommandError(f"batch {part.batch.id} is {part.batch.status}, by somebody else's wish")

    def cancel(self, hurried: Callable[[], bool]) -> None:
        """Cancel what runs, wait a little for its end and write what is there."""
        with suppress(ClientError):
            self._find_out()
            self._stop(self._running(), hurried)
            for part in self._parts:
                self._take_from(part)
        self.out.flush()

    def _find_out(self) -> None:
        """Take in every batch that was noted, also one whose post was broken off: it may be at work."""
        known = {part.number for part in self._parts}
        for noted in self.run.noted():
            if noted.number not in known:
                self._parts.append(Part(noted.number, self._known(noted)))

    def _stop(self, parts: Iterable[Part], hurried: Callable[[], bool] = bool) -> None:
        """Cancel batches and wait a little for their end."""
        stopped = list(parts)
        for part in stopped:
            with suppress(ConflictError):  # it is over
                self._client.cancel_batch(part.batch.id)
        deadline = time.monotonic() + CANCEL_SECONDS
        for part in stopped:
            part.batch = self._client.batch(part.batch.id)
            while not part.batch.ended and time.monotonic() < deadline and not hurried():
                time.sleep(POLL_SECONDS)
                part.batch = self._client.batch(part.batch.id)

    def _running(self) -> list[Part]:
        return [part for part in self._parts if part.is_followed and not part.batch.ended]

    def _followed(self) -> list[Batch]:
        return [part.batch for part in self._parts if part.is_followed]

    def _poll(self) -> None:
        for part in self._running():
            part.batch = self._client.batch(part.batch.id)
        self.tally.update(self._followed())

    def _take(self) -> None:
        """Write the rows that are there, in input order as far as the batches follow it."""
        for part in self._parts:
            self._take_from(part)
            if part.next_row < part.size and not part.batch.ended:
                break
        self.out.flush()

    def _take_from(self, part: Part) -> None:
        if not part.has_news:
            return
        is_over = part.batch.ended
        rows = self._client.results(part.batch.id, after=part.next_row)
        while page := list(islice(rows, _PAGE)):
            self._write(part, page)
            part.next_row = page[-1].index + 1
            self._answered_at = time.monotonic()
        if is_over:
            part.next_row = part.size
            self.run.release(part.number)

    def _write(self, part: Part, rows: list[Row]) -> None:
        """Rows beside their questions; what an old batch was not asked to the end is left to a new one."""
        wanted = ((self.run.place(part.number, row.index), row) for row in rows)
        for place, row in sorted(((place, row) for place, row in wanted if place is not None), key=_place):
            if (part.is_old and is_left(row, self._retry_failed)) or self.out.has(place):
                continue
            question = self._question(place)
            self.out.write(place, question, answers.record(row))
            uses_tools = question.options.get("tools") or self._options.get("tools")
            self.tally.retried += row.attempts > 1 and not uses_tools

    def _question(self, place: int) -> Question:
        """The question at a place; read on, and from the start again only where rows are in another order."""
        if place < self._read_up_to:
            self._read = enumerate(self.out.questions)
        self._read_up_to = place + 1
        return next(question for number, question in self._read if number == place)


def is_left(row: Row, retry_failed: bool) -> bool:
    """Whether the question of a row in an earlier command's batch is left to a new one."""
    return row.error is not None and (retry_failed or row.error.code in NOT_ASKED)


def _place(found: tuple[int, Row]) -> int:
    return found[0]
