"""What the prefork pool needs beyond Celery: its children drain, and their metrics are one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import FrameType
from typing import Any, Final

from aiforge.core.settings import AIForgeSettings
from worker import metrics
from worker.loop import LoopThread
from worker.runtime import Runtime, worker_name
from worker.settings import WorkerSettings
from worker.suspects.forks import Forks

_PREFIX: Final = "aiforge-metrics-"


class Broadcast:
    """Tells all children one thing, once: they notice the end of a pipe whatever they are doing."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._said = False

    def say(self) -> None:
        if not self._said:
            self._said = True
            os.close(self._write)

    def listen(self, loop: LoopThread, heard: Callable[[], None]) -> None:
        """In a child: call `heard` on its loop, now when it was said already."""
        if not self._said:
            os.close(self._write)

        def at_end() -> None:
            loop.loop.remove_reader(self._read)
            heard()

        loop.loop.call_soon_threadsafe(loop.loop.add_reader, self._read, at_end)


class Parent:
    """The parent of the pool runs no turns: it tells its children when the grace time begins and ends.

    The children have a copy of it, whose `runtime` runs their turns.
    """

    def __init__(self, settings: WorkerSettings, library: AIForgeSettings, forks: Forks) -> None:
        self._settings = settings
        self._library = library
        self._forks = forks
        self._runtime: Runtime | None = None
        self._grace_begins, self._grace_ends = Broadcast(), Broadcast()
        self.draining = False
        self.upkeep = LoopThread("upkeep")

    @property
    def runtime(self) -> Runtime:
        assert self._runtime is not None, "only children run turns"
        return self._runtime

    @property
    def turns_loop(self) -> LoopThread:
        return self.runtime.turns_loop

    def why_not_ready(self) -> str | None:
        return "draining" if self.draining else None

    def drain(self, grace: float | None = None) -> None:
        if grace is None and self.draining:
            return
        self.draining = True
        self._grace_begins.say()
        if grace == 0:
            self._grace_ends.say()

    def hand_back(self, holder: int) -> None:
        """Celery ends the child instead, which then hands back what it holds."""

    def stop(self) -> None:
        self.upkeep.stop()

    def start_child(self, **_signal: Any) -> None:
        runtime = self._runtime = Runtime(self._settings, self._library, worker_name(), self._forks)
        self._grace_begins.listen(runtime.upkeep, lambda: runtime.drain(self._settings.grace_seconds))
        self._grace_ends.listen(runtime.upkeep, lambda: runtime.drain(0.0))

    def stop_child(self, **_signal: Any) -> None:
        if self._runtime is not None:
            self._runtime.stop()
            self._runtime = None


class Once:
    """What Celery does at a signal, the first time; what that begins, a second signal does not cut short.

    Celery itself leaves the second one to the system, which ends the process before it has handed back.
    """

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self._handler(number, frame)
        finally:
            signal.signal(number, signal.SIG_IGN)


def wait_in_child(runtime: Runtime, coroutine: Coroutine[Any, Any, None]) -> None:
    """Block a child's main thread until the coroutine has ended on the turns' loop.

    Celery sets its signals up after all that it lets others do in a new child, so a task changes them.
    """
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler) and not isinstance(handler, Once):
        signal.signal(signal.SIGTERM, Once(handler))
    runtime.turns_loop.run(coroutine)


def own_metrics_folder() -> None:
    """Give the children a place for their counts; it has to be known before Prometheus is imported.

    So the process starts itself anew, once; what it was told is in its environment.
    """
    if not _metrics_folder().name.startswith(_PREFIX):
        remove_abandoned_folders()
        folder, held = held_folder()
        os.set_inheritable(held, True)
        os.environ[metrics.FOLDER] = str(folder)
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606  # the program that runs already


def held_folder() -> tuple[Path, int]:
    """A new folder and its lock, which is held until the last process that has this descriptor is gone."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        with contextlib.suppress(FileNotFoundError):
            held = os.open(folder, os.O_RDONLY)
            fcntl.flock(held, fcntl.LOCK_EX)
            if folder.exists():  # another worker can have taken it for abandoned before it was locked
                return folder, held
            os.close(held)


def remove_abandoned_folders() -> None:
    """Those of workers that were killed, with all their children: nobody holds them any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, found)
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)


def remove_metrics_folder() -> None:
    shutil.rmtree(_metrics_folder(), ignore_errors=True)


def _metrics_folder() -> Path:
    return Path(os.environ.get(metrics.FOLDER, ""))
