"""The one retry layer: whether a failed provider call is repeated, and after how long.

A plain function with stamina's back-off curve instead of stamina itself: every repetition is a call
of its own in the ledger, the wait may come from the provider, and stamina's loop costs more CPU than
a whole turn may (about 0.1 ms), counts into a global Prometheus registry and writes logs.
"""

from __future__ import annotations

import random
from typing import Final

from aiforge.core.types import ProviderError

FIRST_WAIT: Final = 0.5
LONGEST_WAIT: Final = 20.0
JITTER: Final = 1.0


def pause_before_retry(
    error: ProviderError, failures: int, *, max_retries: int, time_left: float
) -> float | None:
    """Seconds to wait before the next request, or None when there must be none.

    `failures` counts the failed requests so far, from 1. A `Retry-After` is never undercut; one that
    reaches past `time_left` (seconds to the turn's deadline) ends the turn now instead of later.
    """
    if not error.retryable or failures > max_retries:
        return None
    spread = random.uniform(0, JITTER)  # noqa: S311  # spreads load, guards nothing
    if error.retry_after is not None:
        pause = error.retry_after + spread
    else:
        pause = min(FIRST_WAIT * 2 ** (failures - 1) + spread, LONGEST_WAIT)
    return pause if pause < time_left else None
