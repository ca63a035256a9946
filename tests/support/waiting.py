"""Waiting for a condition: the one place of the tests that pauses."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, overload

T = TypeVar("T")
_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.04
_GROWTH: Final = 1.25
"""Who waits for long looks less often: a look can be a request, and the processor is needed elsewhere."""


def wait_until(condition: Callable[[], T], seconds: float = 10.0, pause: float = _PAUSE) -> T:
    """What the condition returns as soon as that is true; AssertionError when it never is.

    For threads and processes; on an event loop use `eventually`.
    """
    limit = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < limit, f"still {value!r} after {seconds} s"
        time.sleep(pause)
        pause = _longer(pause)
    return value


@overload
async def eventually(
    condition: Callable[[], Coroutine[Any, Any, T]], seconds: float = 10.0, pause: float = _PAUSE
) -> T: ...
@overload
async def eventually(condition: Callable[[], T], seconds: float = 10.0, pause: float = _PAUSE) -> T: ...
async def eventually(condition: Callable[[], Any], seconds: float = 10.0, pause: float = _PAUSE) -> Any:
    """`wait_until` on an event loop; the condition may be a coroutine function."""
    limit = time.monotonic() + seconds
    while not (value := await _asked(condition)):
        assert time.monotonic() < limit, f"still {value!r} after {seconds} s"
        await asyncio.sleep(pause)
        pause = _longer(pause)
    return value


def _longer(pause: float) -> float:
    return max(pause, min(pause * _GROWTH, _LONGEST_PAUSE))


async def _asked(condition: Callable[[], Any]) -> Any:
    answer = condition()
    return await answer if inspect.isawaitable(answer) else answer
