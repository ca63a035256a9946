"""The pools a worker can run its tasks in, and how a task waits in each."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, ClassVar, Final, assert_never

from celery.concurrency import prefork, solo, thread
from celery.concurrency.base import apply_target

from worker.pools.greenlets import GreenletPool, wait_in_greenlet
from worker.pools.host import Host
from worker.pools.prefork import wait_in_child
from worker.runtime import Runtime
from worker.settings import Pool
from worker.tasks import Wait
from worker.upkeep.leases import HOLDER


class ThreadPool(thread.TaskPool):
    """Celery's thread pool, except that a task can be stopped and a shutdown begins the grace time."""

    host: ClassVar[Host]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._numbers = count(1)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        **_unused: Any,
    ) -> thread.ApplyResult:
        work = (target, args, kwargs, callback, accept_callback)
        return thread.ApplyResult(self.executor.submit(_traced, next(self._numbers), *work))

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        self.host.hand_back(pid)

    def on_close(self) -> None:
        self.host.drain()


class PreforkPool(prefork.TaskPool):
    """Celery's process pool; its children are told when the grace time begins and when it ends."""

    host: ClassVar[Host]
    flush: Any

    def on_start(self) -> None:
        super().on_start()
        self._flush = self.flush
        self.flush = self._flush_unless_draining

    def on_close(self) -> None:
        self.host.drain()
        super().on_close()

    def _flush_unless_draining(self) -> None:
        """At a shutdown, the stock pool forgets what its children have not confirmed yet, and then does
        not read their results; each child waits 30 s for that."""
        if not self.host.draining:
            self._flush()


_POOLS: Final[dict[Pool, type[Any]]] = {
    "greenlets": GreenletPool,
    "threads": ThreadPool,
    "prefork": PreforkPool,
    "solo": solo.TaskPool,
}


def pool_of(host: Host, name: Pool) -> type[Any]:
    """The pool's class, bound to the process it will live in; Celery makes the object."""
    pool = _POOLS[name]
    return type(pool.__name__, (pool,), {"host": host})


def wait_of(name: Pool) -> Wait:
    """How a task of this pool waits for the turns' loop."""
    match name:
        case "greenlets":
            return wait_in_greenlet
        case "prefork":
            return wait_in_child
        case "threads" | "solo":
            return wait_in_thread
        case _:
            assert_never(name)


def wait_in_thread(runtime: Runtime, coroutine: Coroutine[Any, Any, None]) -> None:
    """Block this thread until the coroutine has ended on the turns' loop."""
    runtime.turns_loop.run(coroutine)


def _traced(number: int, *work: Any) -> None:
    HOLDER.set(number)
    apply_target(*work, pid=number)
