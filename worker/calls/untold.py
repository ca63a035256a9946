"""Answers that nobody has been told of, because a model that is well is called without asking."""

from __future__ import annotations

import math
import time

from worker.contract.calls.providers import MEMORY_SECONDS


class Untold:
    """How many calls were answered lately of which nobody was told, because the model was well."""

    def __init__(self) -> None:
        self._count = 0.0
        self._began = self._last = 0.0

    def add(self) -> None:
        now = time.monotonic()
        self._began = self._began or now
        self._count = self._count * math.exp((self._last - now) / MEMORY_SECONDS) + 1
        self._last = now

    def take(self) -> tuple[float, float]:
        """How many as of now, and over how many seconds."""
        now = time.monotonic()
        count, seconds = self._count * math.exp((self._last - now) / MEMORY_SECONDS), now - self._began
        self._count = self._began = 0.0
        return (count, seconds) if count else (0.0, 0.0)
