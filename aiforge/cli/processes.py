"""Child processes that never outlive us.

Each child is the head of a process group of its own, so that a Ctrl-C in the terminal reaches only
us and we stop our children in order. Should we be killed, Linux kills the children with us.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aiforge.cli.errors import EXIT_CONFIG, CommandError, SetupError
from aiforge.core.ready import READY_FD

LAST_LINES: Final = 8
LOG_BYTES: Final = 10_000_000
"""A log that has grown past this is put aside when its service starts again."""
_SET_PARENT_DEATH_SIGNAL: Final = 1
"""PR_SET_PDEATHSIG of Linux's prctl(2)."""


class Service:
    """A child process that says when it is ready and writes its stderr to a log file."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str],
        logs: Path,
        inherit: Sequence[int] = (),
        dies_with_us: bool = True,
    ) -> None:
        self.name = name
        self.log = logs / f"{name}.log"
        logs.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        self._ready, write = os.pipe()
        try:
            with self.log.open("ab") as log:
                self._log_start = log.tell()
                self.process = subprocess.Popen(  # noqa: S603  # our own modules
                    [sys.executable, "-P", "-m", module, *arguments],
                    env={**environment, READY_FD: str(write)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(write, *inherit),
                    start_new_session=True,
                    preexec_fn=_die_with(os.getpid()) if dies_with_us else None,  # noqa: PLW1509
                )
        finally:
            os.close(write)

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_ready(self, seconds: float) -> dict[str, Any]:
        """What the service says of itself; raises CommandError or SetupError when it does not come up."""
        deadline = time.monotonic() + seconds
        said = b""
        with selectors.DefaultSelector() as selector, os.fdopen(self._ready, "rb", buffering=0) as ready:
            selector.register(ready, selectors.EVENT_READ)
            while not said.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise CommandError(f"{self.name} was not ready within {seconds:.0f} s", self.last_lines())
                data = ready.read(4096)
                if not data:
                    with suppress(subprocess.TimeoutExpired):
                        self.process.wait(10)
                    raise self.death()
                said += data
        answer: dict[str, Any] = json.loads(said)
        return answer

    def death(self) -> CommandError:
        """The error that says how this service ended and what it said last."""
        lines = self.last_lines()
        if self.process.returncode == EXIT_CONFIG:
            return SetupError(lines[-1] if lines else f"{self.name} refuses its settings")
        code = self.process.returncode
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"ended with code {code}"
        )
        return CommandError(f"{self.name} {how} (log: {self.log})", lines)

    def last_lines(self) -> tuple[str, ...]:
        """What this run wrote last."""
        with self.log.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - 20_000))
            lines = log.read().decode(errors="replace").rstrip().split("\n")
        return tuple(line[:500] for line in lines[-LAST_LINES:] if line.strip())

    def kill(self) -> None:
        """At once, with all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


def stop(services: Sequence[Service], seconds: float, hurried: Callable[[], bool]) -> list[str]:
    """SIGTERM to all, SIGKILL to who is left when time is over or somebody hurries; the names of those."""
    for service in services:
        with suppress(ProcessLookupError):
            service.process.terminate()
    deadline = time.monotonic() + seconds
    left = list(services)
    while left and time.monotonic() < deadline and not hurried():
        left = [service for service in left if service.process.poll() is None]
        time.sleep(0.02)
    killed = [service.name for service in left if service.process.poll() is None]
    for service in services:
        service.kill()
    return killed


def _die_with(parent: int) -> Callable[[], None] | None:
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask_for_death() -> None:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(EXIT_CONFIG)

    return ask_for_death
