"""The pools a worker can run its tasks in."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final

from celery.concurrency.thread import TaskPool

from worker.runtime import Runtime
from worker.settings import Pool


class ThreadPool(TaskPool):
    """Celery's thread pool; its tasks end by themselves when their turns are handed back."""

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """A cold shutdown has handed everything back already; the stock pool raises here."""


POOLS: Final[dict[Pool, Any]] = {
    "threads": ThreadPool,
    "prefork": "prefork",
    "solo": "solo",
}


def wait_in_thread(runtime: Runtime, coroutine: Coroutine[Any, Any, None]) -> None:
    """Block this thread until the coroutine has ended on the turns' loop."""
    runtime.turns_loop.run(coroutine)
