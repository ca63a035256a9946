"""Steps for many works, of which one that is damaged keeps no other waiting."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from worker.contract.errors import Unavailable

_log = logging.getLogger(__name__)


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
