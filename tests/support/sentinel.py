"""A primary, a replica and one Sentinel that is enough to fail over."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import redis

from tests.support.certificates import Certificates
from tests.support.servers import Kind, RedisServer, binary, client_of, free_port
from tests.support.waiting import wait_until

SERVICE: Final = "mymaster"
DOWN_MS: Final = 1_000


class Watched:
    """with Watched() as watched: … watched.primary.kill(); `watched.replica` becomes the primary."""

    def __init__(self, kind: Kind = "valkey", *, tls: Certificates | None = None) -> None:
        options = {"repl-diskless-sync-delay": "0", "shutdown-timeout": "0"}
        self._kind: Kind = kind
        self._tls = tls
        self.primary = RedisServer(kind, options=options, tls=tls)
        follows = {"replicaof": f"127.0.0.1 {self.primary.port}"}
        self.replica = RedisServer(kind, options={**options, **follows}, tls=tls)
        self.port = free_port()
        self._stopping = contextlib.ExitStack()

    @property
    def url(self) -> str:
        place = f"127.0.0.1:{self.port}/{SERVICE}/0"
        return (
            f"redis+sentinel://{place}"
            if self._tls is None
            else f"rediss+sentinel://{place}?{self._tls.query}"
        )

    @property
    def server(self) -> RedisServer:
        """Whichever the Sentinel calls the primary."""
        with client_of(self.port, self._tls, decode_responses=True) as client:
            _, port = client.sentinel_get_master_addr_by_name(SERVICE)
        return next(server for server in (self.primary, self.replica) if server.port == int(port))

    @property
    def ports(self) -> tuple[int, ...]:
        return self.server.ports

    def ask(self, *command: str) -> Any:
        """One command to the Sentinel."""
        with client_of(self.port, self._tls) as client:
            return client.execute_command(*command)

    def failover(self) -> None:
        """Let the replica take over from a primary that is well, which becomes its replica."""
        was = self.server
        self.ask("SENTINEL", "FAILOVER", SERVICE)
        wait_until(lambda: self.server is not was, 30)
        # What the Sentinel does itself eight seconds later.
        was.ask("REPLICAOF", "127.0.0.1", self.server.port)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for server in (self.primary, self.replica):
                stack.enter_context(server)
            wait_until(lambda: self._replication(self.replica).get("master_link_status") == "up", 30)
            self._start_sentinel(stack)
            self._stopping = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.close()

    def _start_sentinel(self, stack: contextlib.ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aiforge-sentinel-")))
        port = [f"port {self.port}"]
        if self._tls is not None:
            port = [
                "port 0",
                f"tls-port {self.port}",
                *(f"{name} {value}" for name, value in self._tls.options.items()),
            ]
        lines = [
            *port, "bind 127.0.0.1", f"dir {folder}", f"logfile {folder / 'log'}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary.port} 1",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_MS}",
            f"sentinel failover-timeout {SERVICE} 5000",
        ]  # fmt: skip
        settings = folder / "sentinel.conf"
        settings.write_text("\n".join(lines) + "\n")
        program = binary(self._kind)
        assert program is not None
        process = subprocess.Popen([program, str(settings), "--sentinel"])
        stack.callback(process.wait)
        stack.callback(process.kill)
        wait_until(self._sees_both, 30)

    def _sees_both(self) -> bool:
        try:
            with client_of(self.port, self._tls, decode_responses=True) as client:
                (replica,) = client.sentinel_slaves(SERVICE)
                return bool(replica["flags"] == "slave")
        except (redis.RedisError, ValueError):
            return False

    def _replication(self, server: RedisServer) -> dict[str, str]:
        return dict(server.ask("INFO", "replication"))
