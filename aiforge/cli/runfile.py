"""`run.json`: where `aiforge up` says what it runs, for the commands that want to use it.

It is true while `run.lock` is held; the lock dies with its holder, so a stale file misleads nobody.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from aiforge.cli.embedded import is_locked
from aiforge.cli.errors import CommandError
from aiforge.cli.folder import make_data_folder

FILE: Final = "run.json"
LOCK: Final = "run.lock"


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """What runs on this data folder; `pids` are by name."""

    api_url: str
    metrics_port: int
    redis_url: str
    provider: str
    pids: dict[str, int]
    started_at: float

    @property
    def metrics_url(self) -> str:
        """Where the worker's metrics are; the API's are at its own `/metrics`."""
        return f"http://127.0.0.1:{self.metrics_port}/metrics"


def find(data_dir: Path) -> Running | None:
    """What an `aiforge up` on this data folder runs, None when there is none."""
    if not is_locked(data_dir / LOCK):
        return None
    try:
        return msgspec.json.decode((data_dir / FILE).read_bytes(), type=Running)
    except (OSError, msgspec.MsgspecError):
        return None


@contextmanager
def only_one(data_dir: Path) -> Iterator[None]:
    """Be the one `up` of the data folder; raises CommandError when there is one already, or no folder."""
    make_data_folder(data_dir)
    descriptor = os.open(data_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        other = find(data_dir)
        where = f" at {other.api_url}" if other else ""
        raise CommandError(
            f"it runs already on {data_dir}{where}; another one needs another AIFORGE_DATA_DIR"
        ) from None
    try:
        yield
    finally:
        (data_dir / FILE).unlink(missing_ok=True)
        os.close(descriptor)


def write(data_dir: Path, running: Running) -> None:
    """Only its owner can read it: the Redis URL holds a password."""
    draft = data_dir / f"{FILE}.{os.getpid()}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(msgspec.json.encode(running))
    draft.replace(data_dir / FILE)
