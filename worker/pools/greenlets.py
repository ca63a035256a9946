"""A Celery pool without threads: each task is traced by Celery in a greenlet on the turns' event loop.

A waiting turn then costs a few kilobytes, and one process holds a thousand of them. All of Celery's
callbacks run where its consumer runs: what ends on the loop is handed to the consumer's hub, so that
neither kombu's channel nor Celery's sets of requests ever meet a second thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from queue import SimpleQueue
from time import monotonic
from typing import Any, ClassVar, Final, NamedTuple

from celery.concurrency.base import BasePool, apply_target
from celery.exceptions import ImproperlyConfigured
from greenlet import getcurrent, greenlet

from worker.pools.host import Host
from worker.runtime import Runtime
from worker.upkeep.leases import HOLDER

ACK_SECONDS: Final = 0.001


class Job(NamedTuple):
    """One task, and what Celery wants to be told of it."""

    number: int
    target: Callable[..., Any]
    args: Sequence[Any]
    kwargs: dict[str, Any]
    accepted: Callable[[int, float], Any]
    ended: Callable[[Any], Any]


class GreenletPool(BasePool):
    """Runs up to `limit` tasks; every method but `_launch` and `_trace` runs on the consumer's thread."""

    host: ClassVar[Host]
    limit: int
    body_can_be_buffer = True
    signal_safe = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._numbers = count(1)
        self._waiting: deque[Job] = deque()
        self._running: dict[int, Callable[[Any], Any]] = {}
        self._outcomes: SimpleQueue[tuple[int, list[Any]]] = SimpleQueue()
        self._hub: Any = None

    def on_start(self) -> None:
        if self.options.get("threads"):
            raise ImproperlyConfigured(
                "AIFORGE_POOL: greenlets needs a broker with an event loop, such as redis; use threads"
            )

    def register_with_event_loop(self, hub: Any) -> None:
        """Called at each connection to the broker, before the first message."""
        self._hub = hub
        self._collect()

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        callback: Callable[[Any], Any],
        accept_callback: Callable[[int, float], Any],
        **_unused: Any,
    ) -> None:
        self._waiting.append(Job(next(self._numbers), target, args, kwargs, accept_callback, callback))
        self._fill()

    def flush(self) -> None:
        """The connection is lost: what has not begun will be delivered again."""
        self._waiting.clear()

    def terminate_job(self, pid: int, signal: int | None = None) -> None:
        """Hand back what the job holds; Celery has announced its end already."""
        if pid in self._running:
            self._running[pid] = _unheard
            self.host.hand_back(pid)

    def grow(self, n: int = 1) -> None:
        self.limit += n
        self._fill()

    def shrink(self, n: int = 1) -> None:
        self.limit = max(1, self.limit - n)

    def on_close(self) -> None:
        self.host.drain()

    def on_stop(self) -> None:
        """Wait for what runs: it ends by itself, or is handed back when the grace time is over."""
        self._waiting.clear()
        while self._running:
            self._finish(*self._outcomes.get())

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self.limit:
            job = self._waiting.popleft()
            self._running[job.number] = job.ended
            job.accepted(job.number, monotonic())
            self.host.turns_loop.loop.call_soon_threadsafe(self._launch, job)

    def _launch(self, job: Job) -> None:
        """On the loop. The greenlet comes back here when it waits, and to the loop when it ends."""
        greenlet(self._trace).switch(job)

    def _trace(self, job: Job) -> None:
        HOLDER.set(job.number)
        outcome: list[Any] = []
        try:
            apply_target(job.target, job.args, job.kwargs, outcome.append)
        finally:
            self._outcomes.put((job.number, outcome))
            self._hub.call_soon(self._collect)

    def _collect(self) -> None:
        while not self._outcomes.empty():
            self._finish(*self._outcomes.get())
        # Acknowledgements now wait in the hub, which would first sleep: only other threads wake it.
        self._hub.call_later(ACK_SECONDS, _unheard)

    def _finish(self, number: int, outcome: list[Any]) -> None:
        """`outcome` is empty when the tracer itself broke: the message stays unacknowledged."""
        ended = self._running.pop(number)
        for value in outcome:
            ended(value)
        self._fill()

    def _get_info(self) -> dict[str, Any]:
        return {**super()._get_info(), "running": len(self._running), "waiting": len(self._waiting)}


def wait_in_greenlet(runtime: Runtime, coroutine: Coroutine[Any, Any, None]) -> None:
    """Give the loop back until the coroutine has ended; it runs in the greenlet's own context."""
    waiting = getcurrent()
    task = runtime.turns_loop.loop.create_task(coroutine)
    task.add_done_callback(lambda _task: waiting.switch())
    waiting.parent.switch()
    task.result()


def _unheard(_outcome: Any = None) -> None:
    """Takes the outcome of a job that was terminated."""
