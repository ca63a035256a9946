"""Tasks that a process needs for as long as it lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

PAUSE_SECONDS: Final = 1.0
_log = logging.getLogger(__name__)


async def keep_up(name: str, task: Callable[[], Awaitable[None]]) -> None:
    """Run a task until it returns; whatever else ends it is logged, and it begins again."""
    while True:
        try:
            return await task()
        except Exception:  # noqa: BLE001  # else the process would live on and do none of this any more
            _log.exception("upkeep_failed", extra={"reason": name})
        await asyncio.sleep(PAUSE_SECONDS)
