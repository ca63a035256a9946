"""How far a batch is: a live bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import accumulate
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from aiforge.cli.output import duration, note, screen, when
from aiforge.client import Batch

RATE_SECONDS: Final = 10.0
"""Rates are those of the last seconds."""
LINE_SECONDS: Final = 5.0
FRAMES_PER_SECOND: Final = 8
WIDEST_BAR: Final = 28
NARROWEST_BAR: Final = 10
NARROW_SCREEN: Final = 60
"""Up to this many columns the figures have all the room."""
GAP: Final = 2


def dollars(amount: Decimal) -> str:
    """Small amounts to a hundredth of a cent; what is less is not nothing."""
    if 0 < amount < Decimal("0.0001"):
        return "<$0.0001"
    return f"${amount:.4f}" if amount < 1 else f"${amount:,.2f}"


def _held(batch: Batch) -> str:
    """Why a batch that is not over does not go on now, in few characters; empty where it does."""
    if batch.paused_at:
        return "paused"
    return f"waits for its budget until {when(batch.waits_until)[:16]}" if batch.waits_until else ""


def say_paused(batch: Batch) -> None:
    """Whoever follows a batch that somebody has paused could wait for ever."""
    if batch.paused_at and not batch.ended:
        note(f"batch {batch.id} is paused; to let it go on: aiforge batch resume {batch.id}", "yellow")


class Tally:
    """The sums over all batches of one run, and how fast they grow."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.completed = 0
        self.failed = 0
        self.tokens = 0
        self.cost = Decimal(0)
        self.unpriced = 0
        self.saved = 0
        self.retried = 0
        """Items that took more than one provider call, among the rows that were read."""
        self.held = ""
        """Why nothing goes on; empty while something does."""
        self._begun = (0, 0)
        self._started = time.monotonic()
        self._ended: float | None = None
        self._past: deque[tuple[float, int, int]] = deque([(self._started, 0, 0)])

    @property
    def done(self) -> int:
        return self.completed + self.failed

    @property
    def elapsed(self) -> float:
        return (self._ended or time.monotonic()) - self._started

    def begin(self, batches: Iterable[Batch]) -> None:
        """Take batches that may have come some way already; rates count from here."""
        self.update(batches)
        self._begun = (self.done, self.tokens)
        self._ended = None
        self._started = time.monotonic()
        self._past = deque([(self._started, *self._begun)])

    def update(self, batches: Iterable[Batch]) -> None:
        """Take the batches as they are now."""
        now = time.monotonic()
        seen = list(batches)
        self.completed = sum(batch.request_counts.completed for batch in seen)
        self.failed = sum(batch.request_counts.failed for batch in seen)
        self.tokens = sum(batch.usage.input_tokens + batch.usage.output_tokens for batch in seen)
        self.cost = sum((batch.cost for batch in seen), Decimal(0))
        self.unpriced = sum(batch.unpriced_calls for batch in seen)
        self.saved = sum(batch.saved_calls for batch in seen)
        reasons = [_held(batch) for batch in seen if not batch.ended]
        self.held = reasons[0] if reasons and all(reasons) else ""
        self._past.append((now, self.done, self.tokens))
        while len(self._past) > 2 and now - self._past[0][0] > RATE_SECONDS:
            self._past.popleft()

    def end(self) -> None:
        """From now on rates are those of the whole run."""
        self._ended = time.monotonic()
        self._past = deque([(self._started, *self._begun), (self._ended, self.done, self.tokens)])

    @property
    def rates(self) -> tuple[float, float]:
        """Items and tokens a second."""
        (start, items, tokens), (end, items_now, tokens_now) = self._past[0], self._past[-1]
        seconds = max(end - start, 1e-3)
        return (items_now - items) / seconds, (tokens_now - tokens) / seconds

    @property
    def money(self) -> str:
        known = dollars(self.cost)
        if self._ended is None and self.cost and 0 < self.done < self.total:
            known += f" of about {dollars(self.cost / self.done * self.total)}"
        return f"{known} + {self.unpriced} unpriced" if self.unpriced else known

    @property
    def counts(self) -> list[str]:
        """What is said of the items beside how many are done and have failed."""
        told = ((self.retried, "retried"), (self.saved, "saved"))
        return [f"{count} {what}" for count, what in told if count]

    @property
    def time(self) -> str:
        """How long it will still take, or took."""
        if self._ended is not None:
            return f"in {duration(self.elapsed)}"
        if self.held:
            return self.held
        items = self.rates[0]
        return f"ETA {duration((self.total - self.done) / items)}" if items > 0 else "ETA –"

    def line(self) -> str:
        items, tokens = self.rates
        told = [f"{self.done}/{self.total} done", f"{self.failed} failed", *self.counts]
        if self._ended is not None and self.done == self._begun[0]:
            return ", ".join([*told, self.money])  # it was over before
        return ", ".join([*told, f"{items:.1f} items/s", f"{tokens:,.0f} tokens/s", self.money, self.time])


class Bar:
    """One line that is drawn anew for every frame; what has no room is left out whole, the last first."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        tally = self._tally
        items, tokens = tally.rates
        counts = [
            Text(f"{tally.done}/{tally.total}", style="bold"),
            Text(f"{tally.failed} failed", style="red" if tally.failed else "dim"),
            *([Text(tally.held, style="yellow")] if tally.held else []),
            Text(tally.money),
            *([] if tally.held else [Text(tally.time, style="dim")]),
            *(Text(told, style="dim") for told in tally.counts),
            Text(f"{items:.1f} items/s"),
            Text(f"{tokens:,.0f} tokens/s"),
        ]
        widths = list(accumulate(text.cell_len + GAP for text in counts))
        taken = NARROWEST_BAR if options.max_width > NARROW_SCREEN else -GAP
        fitting = max(1, sum(width + taken <= options.max_width for width in widths))
        cells: list[RenderableType] = [*counts[:fitting]]
        width = min(WIDEST_BAR, options.max_width - widths[fitting - 1]) if taken > 0 else 0
        if width > 0:
            cells.insert(0, ProgressBar(total=tally.total, completed=tally.done, width=width))
        row = Table.grid(padding=(0, GAP, 0, 0))
        for _ in cells:
            row.add_column(no_wrap=True)
        row.add_row(*cells)
        yield row


class Lines:
    """Says a plain line when something has changed and the last one is some seconds old."""

    def __init__(self, tally: Tally, console: Console) -> None:
        self._tally = tally
        self._console = console
        self._last: tuple[float, int, str] = (time.monotonic(), 0, "")

    def say(self) -> None:
        then, *before = self._last
        now = (self._tally.done, self._tally.held)
        if now != tuple(before) and time.monotonic() - then >= LINE_SECONDS:
            self._last = (time.monotonic(), *now)
            self._console.print(self._tally.line())


@contextmanager
def shown(tally: Tally) -> Iterator[Lines | None]:
    """Show the tally while the block runs; whoever gets Lines says them itself."""
    console = screen()
    if not console.is_terminal or console.is_dumb_terminal:
        yield Lines(tally, console)
        console.print(tally.line())
        return
    with Live(Bar(tally), console=console, refresh_per_second=FRAMES_PER_SECOND):
        yield None
