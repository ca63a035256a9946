"""Using the embedded server: hold its users' lock, ask for it to run, learn its address.

The server's supervisor is no child of ours: it serves everybody who holds the lock and ends when
nobody does. Children inherit the lock, so the server outlives them even when we are killed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from aiforge.cli.errors import CommandError
from aiforge.cli.folder import make_data_folder
from aiforge.cli.processes import Service
from aiforge.cli.signals import deferred

READY_SECONDS: Final = 130.0
GONE_SECONDS: Final = 40.0


class Embedded:
    """A running embedded server that we use until `release`; raises CommandError when there is none."""

    def __init__(self, data_dir: Path, environment: Mapping[str, str]) -> None:
        self.data_dir = data_dir
        self.lock = self._use()
        self._starter: Service | None = None
        try:
            with deferred():
                self._starter = Service(
                    "embedded",
                    "worker.embedded",
                    ["--data-dir", str(data_dir)],
                    environment=environment,
                    logs=data_dir / "logs",
                    dies_with_us=False,
                )
            said = self._starter.wait_ready(READY_SECONDS)
        except BaseException:
            self._give_up()
            raise
        self.url: str = said["redis_url"]
        self.supervisor: int = said["supervisor_pid"]
        if self.supervisor != self._starter.pid:
            self._starter.process.wait()

    def _use(self) -> int:
        # Waits while an old server shuts down: its supervisor holds the lock alone until it is gone.
        make_data_folder(self.data_dir)
        lock = os.open(self.data_dir / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        return lock

    @property
    def gone(self) -> bool:
        """Whether the server's supervisor has ended, or where it is not ours, the server as well."""
        return self._starter_ended() or not is_locked(self.data_dir / "embedded.lock")

    def death(self) -> CommandError:
        """The error that says that the server is gone."""
        if self._starter is not None and self._starter_ended():
            return self._starter.death()
        return CommandError(f"the embedded server is gone (log: {self.data_dir / 'logs' / 'valkey.log'})")

    def _starter_ended(self) -> bool:
        starter = self._starter
        return starter is not None and starter.pid == self.supervisor and starter.process.poll() is not None

    def _give_up(self) -> None:
        os.close(self.lock)
        if self._starter is not None:
            self._starter.process.terminate()
            self._starter.process.wait()

    def release(self) -> None:
        """Stop using it; when we were the last, wait until it has written everything and ended."""
        os.close(self.lock)
        users, supervisor = self.data_dir / "users.lock", self.data_dir / "embedded.lock"
        if is_locked(users) or not is_locked(supervisor):
            return
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.supervisor, signal.SIGTERM)
        deadline = time.monotonic() + GONE_SECONDS
        while is_locked(supervisor) and time.monotonic() < deadline:
            if self._starter is not None:
                self._starter.process.poll()
            time.sleep(0.02)


def is_locked(file: Path) -> bool:
    """Whether somebody holds the lock, alone or shared."""
    try:
        descriptor = os.open(file, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
