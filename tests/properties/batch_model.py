"""What a batch is, in plain Python: the reference that the scripts are compared with."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from worker.contract.schemas import BatchState

MAX_ATTEMPTS: Final = 3
ITEMS_A_SECOND: Final = 4
"""As fast as the model's items are from the first row on."""


@dataclass(frozen=True)
class Part:
    """Neighbouring items and what has happened to the slices they were in."""

    start: int
    count: int
    crashes: int = 0

    @property
    def suspect(self) -> bool:
        return self.crashes >= MAX_ATTEMPTS - 1

    @property
    def indexes(self) -> range:
        return range(self.start, self.start + self.count)


@dataclass(eq=False)
class Held:
    """A slice that some worker took; it may be long superseded."""

    part: Part
    fence: int
    token: str
    items: list[int]


@dataclass(eq=False)
class ModelBatch:
    total: int
    window: int
    state: BatchState = BatchState.IN_PROGRESS
    cursor: int = 0
    fence: int = 0
    redo: deque[Part] = field(default_factory=deque)
    running: dict[int, Held] = field(default_factory=dict)
    """Slices that are held, by their first index."""
    expired: set[int] = field(default_factory=set)
    rows: dict[int, str] = field(default_factory=dict)
    """Results by index: ok or error."""
    calls: dict[str, str] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return self.state in (BatchState.COMPLETED, BatchState.CANCELLED)

    def holds(self, held: Held) -> bool:
        now = self.running.get(held.part.start)
        return now is not None and now.fence == held.fence

    def next_part(self) -> Part | str:
        """What a worker is given next, or why it gets nothing."""
        if self.state is not BatchState.IN_PROGRESS:
            return self.state.value
        if len(self.running) >= self.window:
            return "window"
        if self.redo:
            return self.redo.popleft()
        remaining = self.total - self.cursor
        if remaining <= 0:
            return "handed out"
        fast = ITEMS_A_SECOND if self.rows else 1
        part = Part(self.cursor, max(1, min(fast, math.ceil(remaining / (2 * self.window)))))
        self.cursor += part.count
        return part

    def hold(self, part: Part, token: str) -> Held:
        self.fence += 1
        held = Held(part, self.fence, token, [index for index in part.indexes if index not in self.rows])
        self.running[part.start] = held
        return held

    def settle(self, calls: dict[str, str]) -> None:
        """An intended or lost call becomes what is said of it; any other stays as it is."""
        for call_id, outcome in calls.items():
            if self.calls.get(call_id, "intended") in ("intended", "lost"):
                self.calls[call_id] = outcome

    def free(self, start: int) -> None:
        del self.running[start]
        self.expired.discard(start)

    def end_if_done(self) -> None:
        cancelling = self.state is BatchState.CANCELLING
        if len(self.rows) == self.total or (cancelling and not self.running):
            self.state = BatchState.CANCELLED if cancelling else BatchState.COMPLETED

    def put_back(self, part: Part) -> str:
        """A slice that nobody holds any more: `queued` to be done again, or `over`."""
        if self.state is not BatchState.IN_PROGRESS:
            if self.state is BatchState.CANCELLING and not self.running:
                self.state = BatchState.CANCELLED
            return "over"
        if part.suspect:
            again = [index for index in part.indexes if index not in self.rows]
            self.redo += [Part(index, 1, part.crashes) for index in again]
        else:
            self.redo.append(part)
        return "queued"

    def crash(self, start: int) -> str:
        """The worker of a slice died: `queued` or `over`."""
        held = self.running[start]
        part = replace(held.part, crashes=held.part.crashes + 1)
        self.free(start)
        return self.put_back(part)
