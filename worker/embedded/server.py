"""One run of the server program: its configuration, start and clean stop."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Final

from worker.embedded.binary import Binary
from worker.embedded.errors import EmbeddedError, PortTakenError
from worker.embedded.folder import Address, DataFolder, write_private

START_SECONDS: Final = 120.0
"""A large append-only file takes its time to load."""
STOP_SECONDS: Final = 30.0
PR_SET_PDEATHSIG: Final = 1
"""From Linux's prctl(2): the signal a process gets when its parent dies."""

CONFIG: Final = """\
bind 127.0.0.1
port {port}
requirepass {password}
appendonly yes
appendfsync {durability}
save ""
maxmemory-policy noeviction
tcp-keepalive 60
"""


class Server:
    """A running server; `wait_ready` raises EmbeddedError or PortTakenError."""

    def __init__(self, folder: DataFolder, binary: Binary, port: int, durability: str) -> None:
        self.folder = folder
        self.binary = binary
        self.port = port
        self.durability = durability
        self.password = folder.password()
        config = CONFIG.format(port=port, password=self.password, durability=durability)
        write_private(folder.server / "valkey.conf", config)
        prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

        def end_with_supervisor() -> None:
            if prctl is not None:
                prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

        with folder.log.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(  # noqa: S603  # a program that said it is such a server
                [binary.path, "valkey.conf"],
                cwd=folder.server,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(folder.supervisor_lock,),
                start_new_session=True,
                preexec_fn=end_with_supervisor,  # noqa: PLW1509  # the supervisor has one thread
            )

    def address(self) -> Address:
        return Address(
            url=f"redis://default:{self.password}@127.0.0.1:{self.port}/0",
            port=self.port,
            pid=self.process.pid,
            supervisor_pid=os.getpid(),
            server=self.binary.name,
            version=self.binary.version,
            durability=self.durability,
        )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not answers(self.port, self.password):
            if self.process.poll() is not None:
                raise self._why_it_died()
            if time.monotonic() > deadline:
                self.stop()
                raise EmbeddedError(
                    f"the server did not answer within {START_SECONDS:.0f} s (log: {self.folder.log})"
                )
            time.sleep(0.02)

    def _why_it_died(self) -> EmbeddedError | PortTakenError:
        with self.folder.log.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode(errors="replace").strip()
        if "Address already in use" in text:
            return PortTakenError()
        if "RDB format version" in text or "AOF format version" in text:
            return self.folder.too_new(self.binary, "a newer server")
        last_line = text.rpartition("\n")[2]
        return EmbeddedError(f"the server ended at once: {last_line[:300]} (log: {self.folder.log})")

    def stop(self) -> None:
        """SIGTERM is the server's SHUTDOWN: it writes and syncs its append-only file, then ends."""
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def answers(port: int, password: str) -> bool:
    """Whether the server behind this port is ours and has loaded its data."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(f"AUTH {password}\r\nPING\r\n".encode())
            reply = b""
            while reply.count(b"\n") < 2 and (data := connection.recv(256)):
                reply += data
    except OSError:
        return False
    return reply == b"+OK\r\n+PONG\r\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
