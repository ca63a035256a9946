"""What one run does. The seed fixes what is asked and who is struck; how far each turn is by then, the
machine decides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, Literal

Fault = Literal["kill", "term", "stop", "redis"]
"""`kill`: SIGKILL of a worker's process group. `term`: SIGTERM, now and then twice, so that running turns are
handed back. `stop`: SIGSTOP until others answer its turns, then SIGCONT: a worker that does not know that it
was given up. `redis`: SIGKILL of the server that holds everything, which is started again at once."""

RECOVERY_SECONDS: Final = 8.0
"""What recovery may take beyond the lease: the reaper's tick and lock, a wake-up, and the answer itself."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Durations are in seconds."""

    seed: int
    kills: int = 20
    """How many workers are struck by `signal`."""
    stops: int = 0
    """How many workers are stopped in addition."""
    redis: int = 0
    """How often the server is killed in addition."""
    durability: Literal["everysec", "always"] = "everysec"
    """When the server writes down what it has accepted."""
    signal: Literal["kill", "term", "mixed"] = "kill"
    rate: float = 20.0
    """Turns submitted a second."""
    pause: float = 5.0
    """Between two faults, on average."""
    lease: float = 12.0
    words: int = 30
    """Of each answer; every word is a chunk of the provider's stream."""
    gap: float = 0.04
    """Between two words."""
    silence: float = 0.2
    """Before the first word and again after the last, so that faults fall there, too."""
    readers: float = 0.3
    """Share of the turns that somebody reads from their submission on."""
    code: Path | None = None
    """A checkout whose workers are tried instead of this one's."""

    @property
    def recovery_limit(self) -> float:
        """From a fault to the end of the turns it hit: 20 s at the default lease."""
        return self.lease + RECOVERY_SECONDS

    @property
    def answer_seconds(self) -> float:
        return self.words * self.gap + 2 * self.silence

    def faults(self) -> list[Fault]:
        random = Random(f"faults {self.seed}")
        ways: tuple[Fault, ...] = ("kill", "term") if self.signal == "mixed" else (self.signal,)
        faults = [random.choice(ways) for _ in range(self.kills)]
        faults += ["stop"] * self.stops
        faults += ["redis"] * self.redis
        random.shuffle(faults)
        return faults
