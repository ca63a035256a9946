"""Waiting for a Redis that is away: an answer is too dear to be dropped after the first refusal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from worker.contract.errors import Unavailable

T = TypeVar("T")
LONGEST_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.5


async def patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat what can be repeated until Redis takes it; Unavailable after a minute."""
    limit = time.monotonic() + LONGEST_SECONDS
    while True:
        try:
            return await attempt()
        except Unavailable:
            if time.monotonic() > limit:
                raise
            await asyncio.sleep(PAUSE_SECONDS)
