"""From settings to a running Celery worker and back: start, signals, drain, end."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import socket
import warnings
from importlib.metadata import version
from types import FrameType
from typing import Any, Final

from celery import Celery, signals
from celery.exceptions import SecurityWarning
from celery.worker import state

from aiforge.core.settings import AIForgeSettings
from worker import health, metrics
from worker.app import application, spare_slots
from worker.contract.logs import Forward, logger
from worker.contract.queues import queue
from worker.contract.schemas import Lane
from worker.contract.service import END_SIGNALS, announce, ignore_signals, say, taken
from worker.loop import LoopThread
from worker.pools import prefork
from worker.pools.choice import pool_of
from worker.pools.prefork import Parent
from worker.runtime import Runtime, worker_name
from worker.settings import WorkerSettings
from worker.suspects import quarantined
from worker.suspects.forks import Forks

LAST_SECONDS: Final = 20.0
"""How long after the grace time the process may take to end; whatever holds it up then, it goes."""
_CHATTY: Final = ("celery.worker.strategy", "celery.app.trace", "kombu", "aiohttp")
_log = logging.getLogger(__name__)


class Single:
    """A worker that is one process and runs its turns itself."""

    def __init__(self, settings: WorkerSettings, library: AIForgeSettings, forks: Forks) -> None:
        self._settings = settings
        self.runtime = Runtime(settings, library, worker_name(), forks)

    @property
    def turns_loop(self) -> LoopThread:
        return self.runtime.turns_loop

    @property
    def upkeep(self) -> LoopThread:
        return self.runtime.upkeep

    @property
    def draining(self) -> bool:
        return self.runtime.draining

    def why_not_ready(self) -> str | None:
        if self.draining:
            return "draining"
        if self.runtime.heartbeat_age > self._settings.lease_seconds:
            return "Redis does not answer"
        return None

    def drain(self, grace: float | None = None) -> None:
        if grace is not None or not self.draining:
            self.runtime.drain(self._settings.grace_seconds if grace is None else grace)

    def hand_back(self, holder: int) -> None:
        self.runtime.leases.stop_held_by(holder, "handed_back")

    def stop(self) -> None:
        self.runtime.stop()


def run(settings: WorkerSettings, library: AIForgeSettings, sock: socket.socket) -> int:
    """Run a worker until a signal ends it; returns the exit code."""
    if settings.pool == "prefork":
        prefork.own_metrics_folder()
    _log_through(settings)
    forks = Forks.begin(quarantined.run)
    host = (Parent if settings.pool == "prefork" else Single)(settings, library, forks)
    celery = application(settings, lambda: host.runtime)
    worker = _celery_worker(celery, settings, host)
    if isinstance(host, Parent):
        signals.worker_process_init.connect(host.start_child, weak=False)
        signals.worker_process_shutdown.connect(host.stop_child, weak=False)
    serving = contextlib.ExitStack()
    signals.worker_ready.connect(_ready(settings, host, sock, worker, serving), weak=False)
    try:
        worker.start()
    finally:
        ignore_signals()
        serving.close()
        host.stop()
        forks.close()
        if settings.pool == "prefork":
            prefork.remove_metrics_folder()
    return int(worker.exitcode or 0)


def _celery_worker(celery: Celery, settings: WorkerSettings, host: Single | Parent) -> Any:
    with warnings.catch_warnings():
        # Celery warns root, because of messages that could run code; ours are JSON.
        warnings.simplefilter("ignore", SecurityWarning)
        worker = celery.Worker(
            hostname=f"aiforge-{os.getpid()}@{socket.gethostname()}",
            pool_cls=pool_of(host, settings.pool),
            concurrency=settings.concurrency + spare_slots(settings),
            queues=[queue(settings.namespace, lane) for lane in Lane],
            without_gossip=True,
            without_mingle=True,
            quiet=True,
            loglevel=settings.log_level.upper(),
        )
    worker.install_platform_tweaks = lambda _worker: _obey_signals(settings, host, worker)
    return worker


def _obey_signals(settings: WorkerSettings, host: Single | Parent, worker: Any) -> None:
    """All of them end in Celery's warm shutdown, which waits for what runs.

    The first one begins the grace time, every further one ends it, and SIGQUIT ends it at once: then
    everything is handed back, and nothing is left to wait for. So no pool has to be torn down.
    """

    def on_signal(number: int, _frame: FrameType | None) -> None:
        again = host.draining or number == signal.SIGQUIT
        grace = 0.0 if again else settings.grace_seconds
        host.drain(grace)
        state.should_stop = 0
        loop = host.upkeep.loop
        loop.call_soon_threadsafe(_wake, worker)
        loop.call_soon_threadsafe(loop.call_later, grace + LAST_SECONDS, _go)

    faulthandler.register(signal.SIGUSR1)
    for number in END_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, on_signal)


def _wake(worker: Any) -> None:
    """Celery's loop looks at the flag when it wakes, which may be seconds away."""
    if worker.hub is not None:
        worker.hub.call_soon(_nothing)


def _go() -> None:
    _log.error("worker_did_not_end")
    os._exit(1)


def _ready(
    settings: WorkerSettings,
    host: Single | Parent,
    sock: socket.socket,
    worker: Any,
    serving: contextlib.ExitStack,
) -> Any:
    def not_ready() -> str | None:
        connection = getattr(worker.consumer, "connection", None)
        if connection is None or not connection.connected:
            return "not connected to the broker"
        return host.why_not_ready()

    def on_ready(**_signal: Any) -> None:
        served = host.upkeep.run(health.serve(sock, not_ready))
        serving.callback(lambda: host.upkeep.run(served.cleanup()))
        port, slots = sock.getsockname()[1], worker.pool.num_processes - spare_slots(settings)
        say(f"worker: ready, pool {settings.pool}, {slots} at a time, metrics at port {port}")
        announce(metrics_port=port, taken=taken(settings.metrics_port, sock))

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
    """Connected, this keeps Celery from setting up logging of its own; called, it does no harm."""
