"""What a batch is, in plain Python: the reference that the scripts are compared with."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from worker.contract.schemas import BATCH_OVER, BatchState

MAX_ATTEMPTS: Final = 3
ITEMS_A_SECOND: Final = 4
"""As fast as the model's items are from the first row on."""
STEPS: Final = {"validate": -1, "finalize": -2}


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
    file: bool = False
    """It has the steps that come before and after the items."""
    repeats: dict[int, int] = field(default_factory=dict)
    """Items that repeat an earlier one."""
    wrong: frozenset[int] = frozenset()
    """Lines whose rows are known from the start."""
    state: BatchState = BatchState.IN_PROGRESS
    step: str | None = None
    step_crashes: int = 0
    """How often the step's worker died."""
    ends_as: BatchState = BatchState.COMPLETED
    paused: bool = False
    cursor: int = 0
    fence: int = 0
    saved: int = 0
    redo: deque[Part] = field(default_factory=deque)
    again: deque[int] = field(default_factory=deque)
    bad: list[int] = field(default_factory=list)
    parked: list[tuple[int, int]] = field(default_factory=list)
    """Who waits for whom: the earlier index, and the one that repeats it."""
    running: dict[int, Held] = field(default_factory=dict)
    """Slices that are held, by their first index, and steps."""
    expired: set[int] = field(default_factory=set)
    rows: dict[int, str] = field(default_factory=dict)
    """Results by index: ok or error."""
    calls: dict[str, str] = field(default_factory=dict)
    timed: bool = False
    """How long an item takes is known."""
    begun: bool = False
    """Its lines are known."""

    def __post_init__(self) -> None:
        if self.file:
            self.state, self.step = BatchState.VALIDATING, "validate"

    @property
    def over(self) -> bool:
        return self.state in BATCH_OVER

    @property
    def takes_rows(self) -> bool:
        ending = self.state is BatchState.FINALIZING and self.step is None
        return ending or self.state in (BatchState.IN_PROGRESS, BatchState.CANCELLING)

    def holds(self, held: Held) -> bool:
        now = self.running.get(held.part.start)
        return now is not None and now.fence == held.fence

    def next_part(self) -> Part | str:  # noqa: PLR0911  # one for each reason
        """What a worker is given next, or why it gets nothing."""
        if self.step is not None:
            start = STEPS[self.step]
            return self.step if start in self.running else Part(start, 0, self.step_crashes)
        if self.state is not BatchState.IN_PROGRESS:
            return self.state.value
        if self.paused:
            return "paused"
        if len(self.running) >= self.window:
            return "window"
        if self.redo:
            return self.redo.popleft()
        if self.again:
            index = self.again.popleft()
            del self.rows[index]
            return Part(index, 1)
        while self.cursor in self.rows:
            self.cursor += 1
        remaining = self.total - self.cursor
        if remaining <= 0:
            return "handed out"
        fast = ITEMS_A_SECOND if self.timed else 1
        part = Part(self.cursor, max(1, min(fast, math.ceil(remaining / (2 * self.window)))))
        self.cursor += part.count
        return part

    def hold(self, part: Part, token: str) -> Held:
        self.fence += 1
        open_ = [index for index in part.indexes if index not in self.rows]
        held = Held(part, self.fence, token, [index for index in open_ if index not in self.repeats])
        self.running[part.start] = held
        for index in open_:
            if index in self.repeats:
                self.repeat(index)
        return held

    def repeat(self, index: int) -> None:
        """An item that repeats another gets its row, or waits for it."""
        earlier = self.repeats[index]
        if earlier not in self.rows:
            self.parked.append((earlier, index))
        elif index not in self.rows:
            self.put_row(index, self.rows[earlier])
            self.saved += self.rows[index] == "ok"

    def put_row(self, index: int, status: str) -> None:
        self.rows[index] = status
        if status == "error":
            self.bad.append(index)

    def store(self, index: int, status: str) -> None:
        """A worker has a result."""
        if index in self.rows or not self.takes_rows:
            return
        self.timed = True
        self.put_row(index, status)
        waiting = [one for one in self.parked if one[0] == index]
        self.parked = [one for one in self.parked if one[0] != index]
        for _, later in waiting:
            self.repeat(later)

    def settle(self, calls: dict[str, str]) -> None:
        """An intended or lost call becomes what is said of it; any other stays as it is."""
        for call_id, outcome in calls.items():
            if self.calls.get(call_id, "intended") in ("intended", "lost"):
                self.calls[call_id] = outcome

    def free(self, start: int) -> None:
        del self.running[start]
        self.expired.discard(start)

    def keep_for_later(self, part: Part) -> None:
        self.redo += [Part(index, 1, part.crashes) for index in part.indexes if index not in self.rows]

    def go_on(self) -> None:
        """What a row or the end of a slice brings about."""
        if self.step is not None or self.over:
            return
        done = len(self.rows) == self.total and not self.again
        if self.state is BatchState.IN_PROGRESS and done:
            self.ends_as = BatchState.COMPLETED
        elif self.state is BatchState.CANCELLING and (done or not self.running):
            self.ends_as = BatchState.CANCELLED
        elif self.state is BatchState.FINALIZING and not self.running:
            self.ends_as = BatchState.EXPIRED
        else:
            return
        if not self.file:
            self.end(self.ends_as)
            return
        self.step = "finalize"
        if self.ends_as is BatchState.COMPLETED:
            self.state = BatchState.FINALIZING

    def end(self, state: BatchState) -> None:
        self.state, self.step, self.step_crashes, self.paused = state, None, 0, False

    def end_step(self, start: int) -> None:
        """All lines are stored, or all files are written."""
        self.free(start)
        if start == STEPS["finalize"]:
            self.end(self.ends_as)
            return
        self.step, self.step_crashes = None, 0
        if self.state is BatchState.CANCELLING:
            self.end(BatchState.CANCELLED)
            return
        self.begun = True
        self.state = BatchState.IN_PROGRESS
        self.rows = dict.fromkeys(self.wrong, "error")
        self.go_on()

    def cancel(self) -> None:
        validating = self.state is BatchState.VALIDATING
        if validating or self.state is BatchState.IN_PROGRESS:
            self.state, self.paused = BatchState.CANCELLING, False
            if not validating:
                self.go_on()
            elif STEPS["validate"] not in self.running:
                self.end(BatchState.CANCELLED)

    def expire(self) -> None:
        if self.state is BatchState.IN_PROGRESS:
            self.state, self.paused = BatchState.FINALIZING, False
            self.go_on()

    def retry(self) -> bool:
        """Whether there was something to be run again."""
        if self.state not in (BatchState.COMPLETED, BatchState.EXPIRED, BatchState.CANCELLED):
            return False
        self.redo += [Part(index, 1) for _, index in self.parked]
        self.parked = []
        total = 0 if self.unread else self.total
        left = len(self.rows) < total and (self.redo or self.cursor < total)
        if not left and not self.bad:
            return False
        if self.bad:
            self.again, self.bad = deque(self.bad), []
        self.state = BatchState.IN_PROGRESS
        return True

    @property
    def unread(self) -> bool:
        """It was cancelled before its lines were known."""
        return self.file and self.state is BatchState.CANCELLED and not self.begun

    def put_back(self, part: Part) -> str:
        """A slice that nobody holds any more: `queued` to be done again, or `over`."""
        if part.count == 0:
            if part.start == STEPS["validate"] and self.state is BatchState.CANCELLING:
                self.end(BatchState.CANCELLED)
                return "over"
            return "queued"
        running = self.state is BatchState.IN_PROGRESS
        if part.suspect or not running:
            self.keep_for_later(part)
        else:
            self.redo.append(part)
        if running:
            return "queued"
        self.go_on()
        return "over"

    def crash(self, start: int) -> str:
        """The worker of a slice died: `queued` or `over`."""
        held = self.running[start]
        part = replace(held.part, crashes=held.part.crashes + 1)
        self.free(start)
        if part.count == 0:
            self.step_crashes += 1
        return self.put_back(part)
