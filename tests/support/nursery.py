"""Processes whose modules are loaded already.

`python -m worker` spends two seconds of the processor on its imports, which by the rules of this project do
nothing else. So for each module one process imports it once, and forks: what it forks has a session, a folder
and an environment of its own, and runs the module's `__main__` as `python -m` does.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final, Protocol

from tests.support.waiting import wait_until

ROOT: Final = Path(__file__).parents[2]
READY_FD: Final = "AIFORGE_READY_FD"
_ORDER_BYTES: Final = 1 << 18
_START_SECONDS: Final = 60.0


class Process(Protocol):
    """What the tests use of a `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Forked:
    """A process that a nursery has forked; its parent there says how it ended."""

    def __init__(self, module: str, status: socket.socket) -> None:
        self._module = module
        self._lock = threading.Lock()
        self._code: int | None = None
        status.settimeout(_START_SECONDS)
        word, number = _said(status.recv(64))
        assert word == "begun", f"{module} ended before it began"
        self.pid = number
        status.setblocking(False)
        self._status = status.detach()

    def poll(self) -> int | None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._code is None:
                _, status = _said(os.read(self._status, 64))
                os.close(self._status)
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        try:
            wait_until(lambda: self.poll() is not None, float("inf") if timeout is None else timeout)
        except AssertionError:
            raise subprocess.TimeoutExpired(self._module, timeout or 0) from None
        assert self._code is not None
        return self._code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The way to the process that has imported a module; it ends with this process."""

    def __init__(self, module: str) -> None:
        self.module = module
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._python = interpreted(environment)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.support.nursery", module, str(theirs.fileno())],
                env=environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def can_start(self, environment: dict[str, str]) -> bool:
        """Whether Python itself would be started with the same settings."""
        return self._python == interpreted(environment)

    def start(self, environment: dict[str, str], folder: Path, ready: int, output: int) -> Forked:
        """Returns when the process has its session; `ready` becomes what `READY_FD` names there."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        order = json.dumps({"environment": environment, "folder": str(folder)}).encode()
        with ours:
            with theirs:
                socket.send_fds(self._control, [order], [theirs.fileno(), ready, output])
            return Forked(self.module, ours)

    def close(self) -> None:
        self._control.close()
        self._process.wait()


@functools.cache
def nursery(module: str) -> Nursery:
    """The one of this process."""
    made = Nursery(module)
    atexit.register(made.close)
    return made


def interpreted(environment: dict[str, str]) -> dict[str, str]:
    """What Python reads of an environment when it starts."""
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


def _said(message: bytes) -> tuple[str, int]:
    if not message:
        raise RuntimeError("a nursery has ended")
    word, number = message.decode().split()
    return word, int(number)


def serve(control: socket.socket, module: str) -> None:
    """Fork a process for each order; returns in each of those, and never otherwise."""
    gc.freeze()  # what is shared stays shared
    while True:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        order, descriptors, _, _ = socket.recv_fds(control, _ORDER_BYTES, 3)
        if not order:
            os._exit(0)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            return _bring_up(module, json.loads(order), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _bring_up(module: str, order: dict[str, dict[str, str]], status: int, ready: int, output: int) -> None:
    """Returns in the new process; its parent stays to say how it ended."""
    if child := os.fork():
        os.close(ready)
        os.close(output)
        _, ended = os.waitpid(child, 0)
        with contextlib.suppress(OSError):
            os.write(status, f"ended {ended}".encode())
        os._exit(0)
    os.setsid()
    os.chdir(str(order["folder"]))
    for number in (1, 2):
        os.dup2(output, number)
    os.environ.clear()
    os.environ.update({**order["environment"], READY_FD: str(ready)})
    os.set_inheritable(ready, True)
    tempfile.tempdir = None
    sys.orig_argv[:] = [sys.executable, "-P", "-m", module]
    os.write(status, f"begun {os.getpid()}".encode())
    os.close(output)
    os.close(status)


if __name__ == "__main__":
    importlib.import_module(f"{sys.argv[1]}.__main__")
    del sys.modules[f"{sys.argv[1]}.__main__"]  # or Python warns that it runs for the second time
    serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[1])
    runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
