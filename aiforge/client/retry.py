"""When a request is sent again: only if it cannot have done anything, or may do it twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

import httpx

from aiforge.client.call import Call
from aiforge.client.errors import retry_after

LONGEST_WAIT_SECONDS: Final = 30.0
"""The service lets a request wait so long at the most."""
_CAN_PASS: Final = frozenset({429, 502, 503, 504})
_FIRST_SECONDS: Final = 0.2
_LONGEST_SECONDS: Final = 10.0


class Attempts:
    """Counts the attempts of one call."""

    def __init__(self, call: Call[Any], retries: int) -> None:
        self._call = call
        self._left = retries
        self._pause = _FIRST_SECONDS

    def pause(self, outcome: httpx.Response | httpx.HTTPError) -> float | None:
        """Seconds to wait before the next attempt, None when this outcome stands."""
        if self._left == 0 or not self._may_repeat(outcome):
            return None
        self._left -= 1
        pause, self._pause = self._pause, 2 * self._pause
        asked = retry_after(outcome) if isinstance(outcome, httpx.Response) else None
        return pause if asked is None else min(max(pause, asked), _LONGEST_SECONDS)

    def _may_repeat(self, outcome: httpx.Response | httpx.HTTPError) -> bool:
        if isinstance(outcome, httpx.Response):
            # 429 and 503 of the service mean that nothing was accepted.
            return outcome.status_code in _CAN_PASS and (
                self._call.repeatable or outcome.status_code in (429, 503)
            )
        if isinstance(outcome, httpx.ConnectError | httpx.ConnectTimeout):
            return False
        return self._call.repeatable and isinstance(outcome, httpx.TransportError)


def waits(seconds: float) -> Iterator[float]:
    """How long to let the service wait, request after request, until `seconds` are over."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        yield min(left, LONGEST_WAIT_SECONDS)
    yield 0.0
