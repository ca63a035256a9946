"""What a pool may ask of the process it lives in."""

from __future__ import annotations

from typing import Protocol

from worker.loop import LoopThread


class Host(Protocol):
    """A process of a worker."""

    @property
    def turns_loop(self) -> LoopThread:
        """The loop that runs the turns."""

    @property
    def draining(self) -> bool:
        """No new work is taken."""

    def drain(self, grace: float | None = None) -> None:
        """Take no more work and hand back what still runs after `grace` seconds.

        Without a time it is the one of the settings, and nothing happens when draining has begun.
        """

    def hand_back(self, holder: int) -> None:
        """Stop what one task of the pool holds."""
