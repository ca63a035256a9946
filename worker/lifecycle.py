"""From settings to a running Celery worker and back: start, signals, drain, end."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final

from celery import Celery, signals

from aiforge.core.settings import AIForgeSettings
from worker import health, metrics
from worker.app import application
from worker.contract.logs import Forward, logger
from worker.contract.queues import queue
from worker.contract.schemas import Lane
from worker.contract.service import announce, say
from worker.pools import POOLS
from worker.runtime import Runtime, worker_name
from worker.settings import WorkerSettings

_CHATTY: Final = ("celery.worker.strategy", "celery.app.trace", "kombu", "aiohttp")


class Process:
    """One operating-system process that runs turns: the worker itself, or a child of the prefork pool."""

    def __init__(self, settings: WorkerSettings, library: AIForgeSettings) -> None:
        self._settings = settings
        self._library = library
        self._runtime: Runtime | None = None

    @property
    def runtime(self) -> Runtime:
        assert self._runtime is not None
        return self._runtime

    def start(self, **_signal: Any) -> None:
        self._runtime = Runtime(self._settings, self._library, worker_name())

    def stop(self, **_signal: Any) -> None:
        if self._runtime is not None:
            self._runtime.stop()
            self._runtime = None


def run(settings: WorkerSettings, library: AIForgeSettings, sock: socket.socket) -> int:
    """Run a worker until a signal ends it; returns the exit code."""
    _log_through(settings)
    process = Process(settings, library)
    celery = application(settings, lambda: process.runtime)
    worker = _celery_worker(celery, settings)
    if settings.pool == "prefork":
        signals.worker_process_init.connect(process.start, weak=False)
        signals.worker_process_shutdown.connect(process.stop, weak=False)
        worker.start()
        return int(worker.exitcode or 0)
    process.start()
    runtime = process.runtime
    signals.worker_shutting_down.connect(_drain(settings, runtime), weak=False)
    signals.worker_ready.connect(_ready(settings, runtime, sock, worker), weak=False)
    try:
        worker.start()
    finally:
        process.stop()
    return int(worker.exitcode or 0)


def _celery_worker(celery: Celery, settings: WorkerSettings) -> Any:
    return celery.Worker(
        pool_cls=POOLS[settings.pool],
        concurrency=settings.concurrency,
        queues=[queue(settings.namespace, lane) for lane in Lane],
        without_gossip=True,
        without_mingle=True,
        quiet=True,
        loglevel=settings.log_level.upper(),
    )


def _drain(settings: WorkerSettings, runtime: Runtime) -> Callable[..., None]:
    """The first signal begins the grace time, every further one ends it."""

    def on_signal(*, how: str, **_signal: Any) -> None:
        again = runtime.draining or how == "Cold"
        runtime.drain(0.0 if again else settings.grace_seconds)

    return on_signal


def _ready(
    settings: WorkerSettings, runtime: Runtime, sock: socket.socket, worker: Any
) -> Callable[..., None]:
    def not_ready() -> str | None:
        connection = getattr(worker.consumer, "connection", None)
        if runtime.draining:
            return "draining"
        if connection is None or not connection.connected:
            return "not connected to the broker"
        if runtime.heartbeat_age > settings.lease_seconds:
            return "Redis does not answer"
        return None

    def on_ready(**_signal: Any) -> None:
        runtime.upkeep.run(health.serve(sock, not_ready))
        port = sock.getsockname()[1]
        say(f"worker: ready, {settings.concurrency} turns at a time, metrics at port {port}")
        announce(metrics_port=port)

    return on_ready


def _log_through(settings: WorkerSettings) -> None:
    """Celery leaves logging alone; everything goes through our lines."""
    signals.setup_logging.connect(_nothing, weak=False)
    log = logger("worker", settings.log_level, settings.log_format)
    logging.basicConfig(handlers=[Forward(log)], level=settings.log_level.upper())
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    metrics.BUILD.labels(version("aiforge")).set(1)


def _nothing(**_signal: Any) -> None:
    """Connected, this keeps Celery from setting up logging of its own."""
