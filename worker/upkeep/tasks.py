"""Tasks that a process needs for as long as it lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from worker.contract.errors import Unavailable

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


class Contained:
    """Takes steps for many works: one that cannot be looked after, because a newer version wrote it or it is
    damaged, keeps no other waiting. It is logged once, until a step succeeds."""

    def __init__(self) -> None:
        self._failing: set[str] = set()

    async def take(self, work: str, step: Callable[[str], Awaitable[object]]) -> None:
        """Raises Unavailable alone."""
        try:
            await step(work)
        except Unavailable:
            raise
        except Exception:  # noqa: BLE001  # whatever is wrong with this one, the others wait for their turn
            if work not in self._failing:
                _log.exception("work_not_looked_after", extra={"works": work})
            self._failing.add(work)
        else:
            self._failing.discard(work)
