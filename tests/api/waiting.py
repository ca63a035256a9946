"""Waiting for what nobody announces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 5) -> None:
    """Return as soon as the condition holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.001)
