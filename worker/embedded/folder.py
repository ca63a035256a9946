"""The files of one data folder and the two locks in it."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from worker.embedded.binary import Binary
from worker.embedded.errors import EXIT_CONFIG, EmbeddedError


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach the server: the content of `valkey.json`."""

    url: str
    port: int
    pid: int
    supervisor_pid: int
    server: str
    version: str
    durability: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class LastRun:
    """Which server last wrote the folder, and where it listened."""

    server: str
    version: str
    port: int


class DataFolder:
    """What stands between runs; raises EmbeddedError when the folder cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.server = self.path / "redis"
        self.log = self.path / "logs" / "valkey.log"
        self.address_file = self.path / "valkey.json"
        self._last_run_file = self.server / "last-run.json"
        try:
            self.server.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.log.parent.mkdir(exist_ok=True)
            self.supervisor_lock = self._open("embedded.lock")
            self.users_lock = self._open("users.lock")
        except OSError as error:
            raise EmbeddedError(
                f"AIFORGE_DATA_DIR: the folder {path} cannot be used: {error.strerror}", EXIT_CONFIG
            ) from None

    def _open(self, name: str) -> int:
        return os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def password(self) -> str:
        """The server's password, made once and kept in a file that only its owner can read."""
        file = self.server / "password"
        if not file.exists():
            write_private(file, secrets.token_urlsafe(24))
        return file.read_text(encoding="ascii")

    def address(self) -> Address | None:
        """What `valkey.json` says, None when there is none or another version of us wrote it."""
        try:
            return Address(**json.loads(self.address_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def announce(self, address: Address) -> None:
        """Write `valkey.json`, and what the next run has to know."""
        last = LastRun(address.server, address.version, address.port)
        write_private(self._last_run_file, json.dumps(asdict(last)))
        write_private(self.address_file, address.to_json())

    def withdraw(self) -> None:
        self.address_file.unlink(missing_ok=True)

    def last_run(self) -> LastRun | None:
        try:
            return LastRun(**json.loads(self._last_run_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def refuse_newer_data(self, binary: Binary) -> None:
        """Raises EmbeddedError when a newer server of the same kind wrote this folder."""
        last = self.last_run()
        if last is None or last.server != binary.name:
            return
        if Binary(binary.path, last.server, last.version).release > binary.release:
            raise self.too_new(binary, f"{last.server} {last.version}")

    def too_new(self, binary: Binary, writer: str) -> EmbeddedError:
        return EmbeddedError(
            f"{self.server} was written by {writer}, which {binary.name} {binary.version} cannot read: "
            "install the newer server or set another AIFORGE_DATA_DIR",
            EXIT_CONFIG,
        )


def lock(descriptor: int) -> bool:
    """Take a lock for ourselves alone; False when somebody holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def write_private(file: Path, text: str) -> None:
    """Replace a file in one step; only its owner can read it."""
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    with os.fdopen(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
    ) as out:
        out.write(text)
    draft.replace(file)
