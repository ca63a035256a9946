"""The two Celery tasks: each is a wake-up that carries an id and has no authority."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from celery import Celery

from worker import metrics
from worker.contract.ids import is_batch_id, is_turn_id
from worker.contract.queues import TASKS
from worker.contract.schemas import Lane
from worker.runtime import Runtime

Wait = Callable[[Runtime, Coroutine[Any, Any, None]], None]
"""How a task waits for a coroutine on the turns' loop; the pool decides."""


def register(application: Celery, runtime: Callable[[], Runtime], wait: Wait) -> None:
    """Add the tasks to an application; `runtime` gives the process's own."""

    @application.task(name=TASKS[Lane.CHAT], shared=False, ignore_result=True)
    def turn(turn_id: object) -> None:
        if isinstance(turn_id, str) and is_turn_id(turn_id):
            wait(runtime(), runtime().turns.run(turn_id))
        else:
            metrics.DROPPED.labels("forged").inc()

    @application.task(name=TASKS[Lane.BATCH], shared=False, ignore_result=True)
    def batch(batch_id: object) -> None:
        if isinstance(batch_id, str) and is_batch_id(batch_id):
            wait(runtime(), runtime().slices.run(batch_id))
        else:
            metrics.DROPPED.labels("forged").inc()
