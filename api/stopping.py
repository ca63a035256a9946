"""Ending tasks so that they have ended."""

from __future__ import annotations

import asyncio
from typing import Any, Final

_AGAIN_SECONDS: Final = 0.1


async def stop(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and return when all are over; their results and errors stay with them.

    Asks again until it is obeyed: before Python 3.12 `asyncio.wait_for` loses a cancellation that
    comes in the moment in which it is done.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=_AGAIN_SECONDS)
