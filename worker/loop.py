"""Event loops in threads of their own, one for turns, one for upkeep, and tasks that live as long."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import uvloop

T = TypeVar("T")
STOP_SECONDS: Final = 5.0
CANCEL_SECONDS: Final = 0.2
PAUSE_SECONDS: Final = 1.0
"""Between the end of a task that is needed for ever, and its next beginning."""
_log = logging.getLogger(__name__)


class LoopThread:
    """An event loop that runs until `stop`."""

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine from any other thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end from any other thread."""
        return self.submit(coroutine).result()

    def stop(self) -> None:
        """Cancel what still runs, wait for it to clean up, end the thread."""
        self.run(_cancel_rest())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _cancel_rest() -> None:
    """Cancel again and again: on Python 3.11 a library that waits with `wait_for` can swallow one."""
    loop = asyncio.get_running_loop()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    limit = loop.time() + STOP_SECONDS
    while rest and loop.time() < limit:
        for task in rest:
            task.cancel()
        _, rest = await asyncio.wait(rest, timeout=CANCEL_SECONDS)
    for task in rest:
        _log.error("task_does_not_end", extra={"reason": task.get_name()})
    await loop.shutdown_asyncgens()


async def keep_up(name: str, task: Callable[[], Awaitable[None]]) -> None:
    """Run a task until it returns; whatever else ends it is logged, and it begins again."""
    while True:
        try:
            return await task()
        except Exception:  # noqa: BLE001  # else the process would live on and do none of this any more
            _log.exception("upkeep_failed", extra={"reason": name})
        await asyncio.sleep(PAUSE_SECONDS)
