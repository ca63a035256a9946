"""What a run of `aiforge batch run` leaves beside its output while its batches may still be at work.

The same command, started again after a detach or a kill, asks for the same batches under the same
idempotency keys, and the service answers with those that are there in place of new ones. A key follows
from the content of its batch and from a word that this run drew; the word is in the file before
anything is sent.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import msgspec

from aiforge.client import Item

_encode: Final = msgspec.json.Encoder(order="sorted").encode


class Noted(msgspec.Struct, frozen=True):
    """`since` is where in the output the rows of the run begin; `batches` are those that are known."""

    word: str
    since: int
    batches: list[str] = []


class Run:
    """One run into a file, or into stdout, where nothing is noted."""

    def __init__(self, target: str) -> None:
        path = Path(target)
        self.is_file = target != "-"
        self.name = target if self.is_file else "stdout"
        self._path = path.with_name(f".{path.name}.run") if self.is_file else None
        self._noted = self._read()
        self.since = None if self._noted is None else self._noted.since
        """Where the rows of the run begin that was broken off; None when none was."""

    def _read(self) -> Noted | None:
        if self._path is None or not self._path.exists():
            return None
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Noted)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None  # a run that cannot be gone on with is begun anew

    def begin(self, since: int) -> None:
        """Go on with the run that was broken off if its rows begin there, too; else begin one."""
        if self._noted is None or self._noted.since != since:
            self._noted = Noted(token_hex(8), since)
            self._write()

    def key(self, items: list[Item], options: dict[str, Any]) -> str:
        """The idempotency key of a batch."""
        assert self._noted is not None
        whole = _encode([self._noted.word, items, options])
        return f"run-{blake2b(whole, digest_size=20).hexdigest()}"

    def knows(self, batch_id: str) -> bool:
        """Whether an earlier command of this run posted that batch; notes it if not."""
        assert self._noted is not None
        if batch_id in self._noted.batches:
            return True
        self._noted = msgspec.structs.replace(self._noted, batches=[*self._noted.batches, batch_id])
        self._write()
        return False

    def end(self) -> None:
        """Nothing is left to go on with: the next command asks anew."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._path is None:
            return
        beside = self._path.with_name(f"{self._path.name}.part")
        with beside.open("wb") as file:
            file.write(_encode(self._noted))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
