"""What one run does. The seed fixes what is asked and who is struck; how far each turn is by then, the
machine decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple, get_args

from tests.chaos.tap import Moment

Fault = Literal[
    "kills", "children", "zombies", "storms", "rolls", "points",
    "redis", "restarts", "full", "clients", "links", "provider",
]  # fmt: skip
FAULTS: Final[Mapping[Fault, str]] = {
    "kills": "SIGKILL of a worker: its process group, or its main process alone",
    "children": "SIGKILL of a worker's child",
    "zombies": "SIGSTOP of a worker at a commit, until others have all its turns, then SIGCONT",
    "storms": "SIGTERM to a worker, several times within a moment",
    "rolls": "rolling restarts: SIGTERM, wait for the end, start anew",
    "points": "SIGKILL of API or worker before or after one script of submit, claim, stream and commit",
    "redis": "SIGKILL of the Redis server, started again at once",
    "restarts": "SHUTDOWN of the Redis server, started again at once",
    "full": "Redis takes no more writes for a while",
    "clients": "CLIENT KILL of every connection",
    "links": "silence, a reset, a lost reply or a slow line between one process and Redis",
    "provider": "silence, a reset or a slow line between workers and provider",
}
"""Every fault by its name, which is its option's, too."""
assert tuple(FAULTS) == get_args(Fault)


class Point(NamedTuple):
    """Where between two steps a process is killed."""

    process: Literal["api", "worker"]
    script: str
    moment: Moment


POINTS: Final = tuple(
    Point(process, script, moment)  # type: ignore[arg-type]  # the literals below
    for process, scripts in (("api", ("submit", "wake")), ("worker", ("claim", "append", "finish")))
    for script in scripts
    for moment in ("before", "after")
)
"""A turn is stored and woken for, claimed, streams and is committed: the steps of its life."""
AIMED: Final[tuple[Point | None, ...]] = (
    Point("worker", "claim", "before"),
    None,
    None,
    Point("worker", "finish", "before"),
    None,
    None,
    Point("worker", "finish", "after"),
    None,
)
"""Of eight kills three strike where chance hardly would: before a claim, right before and after a commit."""

GRACE_SECONDS: Final = 0.3
"""Less than an answer takes, so that SIGTERM leaves something to hand back."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Durations are in seconds."""

    seed: int
    faults: Mapping[Fault, int] = field(default_factory=dict)
    """How often each befalls the run."""
    durability: Literal["everysec", "always"] = "everysec"
    """When the server writes down what it has accepted."""
    skew: bool = False
    """Whether the workers' clocks are ten minutes fast and ten minutes slow in turn."""
    turns: int = 0
    """At least so many are submitted; more if the faults take longer."""
    rate: float = 20.0
    """Turns submitted a second."""
    pause: float | None = None
    """Between two faults, on average; None spreads them over the turns, or is 5."""
    lease: float = 12.0
    words: int = 12
    """Of each answer; every word is a chunk of the provider's stream."""
    gap: float = 0.1
    """Between two words."""
    silence: float = 0.2
    """Before the first word and again after the last, so that faults fall there, too."""
    readers: float = 0.3
    """Share of the turns that somebody reads from their submission on."""
    limit: float | None = None
    """What recovery may take for 95 of 100 turns, and for all if that is more.

    None is 3 beyond the lease, and never less than 8.
    """
    patience: float = 120.0
    """How long after the last fault everything may take to end; what has not by then counts as lost."""
    code: Path | None = None
    """A checkout whose workers are tried instead of this one's."""

    @property
    def most(self) -> float:
        """From a fault to the end of any turn it hit: 30 s at the default lease; `limit` if that is more."""
        return max(self.lease + 18.0, self.limit or 0.0)

    @property
    def usual(self) -> float:
        """From a fault to the end of 95 of 100 turns it hit: 15 s at the default lease, 8 at 4 s."""
        return self.limit if self.limit is not None else max(8.0, self.lease + 3.0)

    @property
    def answer_seconds(self) -> float:
        return self.words * self.gap + 2 * self.silence

    @property
    def between(self) -> float:
        """Seconds between two faults."""
        if self.pause is not None:
            return self.pause
        count = sum(self.faults.values())
        return self.turns / self.rate / count if self.turns and count else 5.0

    def order(self) -> list[Fault]:
        faults = [fault for fault, count in self.faults.items() for _ in range(count)]
        Random(f"faults {self.seed}").shuffle(faults)
        return faults
