"""Celery, held at arm's length: the application, its tasks, and what the worker needs beyond the senders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from celery import Celery

from aiforge.core.topology import topology_of
from worker import tasks
from worker.broker import connection, rabbit, transport
from worker.contract.wakeups.broker import celery_application, on_redis
from worker.pools.choice import wait_of
from worker.runtime import Runtime
from worker.settings import WorkerSettings

SPARE: Final = 0.1
"""So many slots more there are than one lane can take, as a share: a full lane leaves some to the other."""


def spare_slots(settings: WorkerSettings) -> int:
    """How many slots a worker has beyond those that one lane can take; idle greenlets cost nothing."""
    cheap = settings.pool == "greenlets" and on_redis(settings.broker)
    return int(settings.concurrency * SPARE) if cheap else 0


def application(settings: WorkerSettings, runtime: Callable[[], Runtime]) -> Celery:
    """The application of a worker process."""
    celery = celery_application(settings)
    url = settings.broker
    celery.conf.broker_transport = (
        transport.PATHS[topology_of(url).kind] if on_redis(url) else rabbit.path(url)
    )
    celery.amqp.Connection = connection.Connection
    if spare_slots(settings):
        celery.conf.broker_transport_options["each_lane"] = settings.concurrency
    celery.conf.worker_redirect_stdouts = False
    tasks.register(celery, runtime, wait_of(settings.pool))
    return celery
