"""Celery, held at arm's length: the application, its tasks, and what the worker needs beyond the senders."""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery

from aiforge.core.topology import topology_of
from worker import tasks
from worker.broker import rabbit, transport
from worker.contract.wakeups.broker import celery_application, on_redis
from worker.pools.choice import wait_of
from worker.runtime import Runtime
from worker.settings import WorkerSettings


def application(settings: WorkerSettings, runtime: Callable[[], Runtime]) -> Celery:
    """The application of a worker process."""
    celery = celery_application(settings)
    url = settings.broker
    celery.conf.broker_transport = (
        transport.PATHS[topology_of(url).kind] if on_redis(url) else rabbit.path(url)
    )
    celery.conf.worker_redirect_stdouts = False
    tasks.register(celery, runtime, wait_of(settings.pool))
    return celery
