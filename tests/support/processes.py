"""Worker and API as the processes they are: started, waited for, killed, and heard when a test fails."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Any, Final, Protocol

from tests.support.nursery import READY_FD, ROOT, Process, nursery

READY_SECONDS: Final = 30.0
STOP_SECONDS: Final = 30.0


class Service:
    """A process of its own group, in an empty folder, with only the settings it is given.

    With `loaded` its modules are imported already, which saves seconds: see `tests.support.nursery`.
    """

    def __init__(self, module: str, folder: Path, settings: dict[str, str], *, loaded: bool = False) -> None:
        self.module = module
        self._loaded = loaded
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "output"
        """Everything that it wrote to stdout and stderr."""
        self._ready, write = os.pipe()
        self._said: dict[str, Any] | None = None
        with self.log.open("wb") as output:
            self.process = self._start(folder, settings, write, output)
        os.close(write)

    def _start(self, folder: Path, settings: dict[str, str], ready: int, output: IO[bytes]) -> Process:
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("AIFORGE_", "OPENAI_"))
        }
        environment = {**inherited, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), **settings}
        if self._loaded and (loaded := nursery(self.module)).can_start(environment):
            return loaded.start(environment, folder, ready, output.fileno())
        return subprocess.Popen(
            [sys.executable, "-P", "-m", self.module],
            env={**environment, READY_FD: str(ready)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(ready,),
            start_new_session=True,
        )

    def ready(self, seconds: float = READY_SECONDS) -> dict[str, Any]:
        """What it says when it is ready: `{"url": …}` of an API, `{"metrics_port": …}` of a worker."""
        if self._said is None:
            readable, _, _ = select.select([self._ready], [], [], seconds)
            assert readable, f"{self.module} is not ready after {seconds} s\n{self.output}"
            line = os.read(self._ready, 4096)
            assert line, f"{self.module} ended with {self.process.wait(STOP_SECONDS)}\n{self.output}"
            self._said = json.loads(line)
        return self._said

    @property
    def url(self) -> str:
        """Where it serves HTTP, the worker its metrics and health."""
        said = self.ready()
        return str(said["url"] if "url" in said else f"http://127.0.0.1:{said['metrics_port']}")

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """kill -9 of the whole process group."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def terminate(self, seconds: float = STOP_SECONDS) -> int:
        """SIGTERM, then its exit code; subprocess.TimeoutExpired when it does not end in time."""
        self.process.terminate()
        return self.process.wait(seconds)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole process group; nothing happens when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """End it whatever it does, and show what it wrote, which pytest prints when the test failed."""
        self.signal(signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(OSError):
            os.close(self._ready)
        sys.stdout.write(f"---- {self.module} {self.process.pid} ----\n{self.output}\n")


class Start(Protocol):
    """What `worker_process` and `api_process` are: starts one, with settings such as `lease_seconds="2"`.

    It is returned when it is ready, unless `wait` is False.
    """

    def __call__(self, *, wait: bool = True, **settings: str) -> Service: ...


def children(parent: int) -> list[int]:
    """The processes that another one has started and that still run, the oldest first."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = folder.joinpath("stat").read_text().rpartition(") ")[2].split()
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append((int(fields[19]), int(folder.name)))
    return [number for _, number in sorted(found)]
