"""Keeps one server running as long as somebody uses it."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

from aiforge.core.ready import tell_ready
from worker.embedded.binary import find_binary
from worker.embedded.errors import EmbeddedError, PortTakenError
from worker.embedded.folder import Address, DataFolder, lock, unlock
from worker.embedded.server import START_SECONDS, Server, answers, free_port

IDLE_SECONDS: Final = 2.0
TICK_SECONDS: Final = 0.1
DEATHS_ALLOWED: Final = 3
DEATHS_WITHIN_SECONDS: Final = 30.0
PORT_TRIES: Final = 5


class Supervisor:
    """Holds `embedded.lock`. SIGTERM and SIGINT end it once no user is left, without the two seconds."""

    def __init__(self, folder: DataFolder, durability: str, *, keep: bool) -> None:
        self.folder = folder
        self.durability = durability
        self.keep = keep
        self.binary = find_binary()
        folder.refuse_newer_data(self.binary)
        self._asked_to_stop = False
        self._deaths: list[float] = []

    def run(self) -> None:
        """Serve until nobody is left; raises EmbeddedError."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        server = self._start()
        try:
            idle_since = time.monotonic()
            while True:
                if server.process.poll() is not None:
                    server = self._start_again(server)
                now = time.monotonic()
                if self._in_use():
                    idle_since = now
                elif (self._asked_to_stop or now - idle_since >= IDLE_SECONDS) and self._close_the_door():
                    break
                time.sleep(TICK_SECONDS)
        finally:
            self.folder.withdraw()
            server.stop()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._asked_to_stop = True

    def _in_use(self) -> bool:
        if self.keep and not self._asked_to_stop:
            return True
        if not lock(self.folder.users_lock):
            return True
        unlock(self.folder.users_lock)
        return False

    def _close_the_door(self) -> bool:
        """From here to our end a new user waits for the lock, so none meets a dying server."""
        return lock(self.folder.users_lock)

    def _start(self) -> Server:
        # The last port again, so that clients of a server that comes back find it.
        last = self.folder.last_run()
        port = last.port if last else free_port()
        for _ in range(PORT_TRIES):
            server = Server(self.folder, self.binary, port, self.durability)
            try:
                server.wait_ready()
            except PortTakenError:
                port = free_port()
            else:
                address = server.address()
                self.folder.announce(address)
                report(address)
                return server
        raise EmbeddedError("found no free port for the server")

    def _start_again(self, dead: Server) -> Server:
        now = time.monotonic()
        self._deaths = [at for at in self._deaths if now - at < DEATHS_WITHIN_SECONDS] + [now]
        if len(self._deaths) > DEATHS_ALLOWED:
            raise EmbeddedError(f"the server keeps dying (log: {self.folder.log})")
        say(f"the server died with code {dead.process.returncode}; starting it again")
        return self._start()


def run(data_dir: Path, durability: str, *, keep: bool) -> None:
    """Become the supervisor of the folder, or report the server there is; raises EmbeddedError."""
    folder = DataFolder(data_dir)
    deadline = time.monotonic() + START_SECONDS
    while not lock(folder.supervisor_lock):
        if address := _find_running(folder):
            report(address)
            return
        if time.monotonic() > deadline:
            raise EmbeddedError(f"{folder.path / 'embedded.lock'} is held, but no server answers")
        time.sleep(0.02)
    Supervisor(folder, durability, keep=keep).run()


def _find_running(folder: DataFolder) -> Address | None:
    """The address of the server that another supervisor keeps, None while it has none."""
    address = folder.address()
    if address is None or not answers(address.port, folder.password()):
        return None
    with suppress(ProcessLookupError):
        os.kill(address.supervisor_pid, 0)
        return address
    return None


def report(address: Address) -> None:
    """One line for people, and one of JSON to whoever started us and waits for it."""
    say(f"{address.server} {address.version} on 127.0.0.1:{address.port}, appendfsync {address.durability}")
    tell_ready(redis_url=address.url, pid=address.pid, supervisor_pid=address.supervisor_pid)


def say(line: str) -> None:
    sys.stderr.write(f"embedded: {line}\n")
    sys.stderr.flush()
