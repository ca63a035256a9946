"""Conversations as files: one per conversation, one line per entry, readable with any editor.

A line is the entry's number, a space, and the entry, in which a line feed cannot stand raw. A last
line without its line feed is one whose writer died: it never happened, and is cut off by the next.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote, unquote

from aiforge.core.types import ConversationMovedError, StoreError
from aiforge.modules.chat.stores.protocol import moved

T = TypeVar("T")

SUFFIX: Final = ".log"
TAIL: Final = 64 * 1024
"""Bytes at the end of a file in which the last line is looked for first."""


class FileStore:
    """Conversations in the files of a folder, which is made when it is first written to.

    Several processes of one machine may use it at once: a writer locks the file that it writes.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).absolute()

    async def append(self, conversation_id: str, number: int, entry: bytes) -> None:
        if b"\n" in entry:
            raise StoreError("an entry must not hold a raw line feed")
        await _threaded(lambda: self._append(conversation_id, number, entry))

    async def read(self, conversation_id: str, *, after: int = 0) -> list[tuple[int, bytes]]:
        return await _threaded(lambda: self._read(conversation_id, after))

    async def compact(self, conversation_id: str, number: int, entry: bytes) -> None:
        await _threaded(lambda: self._compact(conversation_id, number, entry))

    async def delete(self, conversation_id: str) -> None:
        await _threaded(lambda: self._delete(conversation_id))

    async def conversations(self) -> list[str]:
        return await _threaded(self._conversations)

    async def close(self) -> None:
        """Files are open only while they are read or written."""

    def _path(self, conversation_id: str) -> Path:
        return self._folder / (quote(conversation_id, safe="") + SUFFIX)

    def _append(self, conversation_id: str, number: int, entry: bytes) -> None:
        with self._locked(conversation_id, create=number == 1) as file:
            if file is None:
                raise ConversationMovedError(moved(conversation_id, number))
            last, end = _last(file)
            if number != last + 1:
                raise ConversationMovedError(moved(conversation_id, number))
            os.ftruncate(file, end)
            _write(file, end, _line(number, entry))
            os.fsync(file)

    def _read(self, conversation_id: str, after: int) -> list[tuple[int, bytes]]:
        try:
            content = self._path(conversation_id).read_bytes()
        except FileNotFoundError:
            return []
        return [entry for entry in _entries(content) if entry[0] > after]

    def _compact(self, conversation_id: str, number: int, entry: bytes) -> None:
        with self._locked(conversation_id) as file:
            entries = [] if file is None else _entries(os.pread(file, os.fstat(file).st_size, 0))
            if not any(known == number for known, _ in entries):
                raise ConversationMovedError(moved(conversation_id, number))
            kept = [(number, entry), *(later for later in entries if later[0] > number)]
            path = self._path(conversation_id)
            fresh = path.with_suffix(".new")
            with fresh.open("wb") as copy:
                copy.writelines(_line(*each) for each in kept)
                copy.flush()
                os.fsync(copy.fileno())
            fresh.replace(path)
            self._sync_folder()

    def _delete(self, conversation_id: str) -> None:
        with self._locked(conversation_id) as file:
            if file is not None:
                self._path(conversation_id).unlink()
                self._sync_folder()

    def _conversations(self) -> list[str]:
        if not self._folder.is_dir():
            return []
        found = [path for path in self._folder.iterdir() if path.suffix == SUFFIX and path.stat().st_size]
        return sorted(unquote(path.stem) for path in found)

    @contextmanager
    def _locked(self, conversation_id: str, *, create: bool = False) -> Iterator[int | None]:
        """The conversation's file, locked for writing; None when there is none."""
        path = self._path(conversation_id)
        if create:
            self._folder.mkdir(parents=True, exist_ok=True)
        while True:
            try:
                file = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
            except FileNotFoundError:
                yield None
                return
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                if _still_at(path, file):
                    if create:
                        self._sync_folder()
                    yield file
                    return
            finally:
                os.close(file)

    def _sync_folder(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


async def _threaded(act: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(act)
    except OSError as error:
        raise StoreError(f"{error.filename or 'the file of a conversation'}: {error.strerror}") from error


def _still_at(path: Path, file: int) -> bool:
    """Whether the file that was locked is still the conversation's: it may have been replaced before."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _last(file: int) -> tuple[int, int]:
    """The number of the last whole line, 0 if there is none, and where that line ends."""
    size = os.fstat(file).st_size
    for length in (min(TAIL, size), size):
        content = os.pread(file, length, size - length)
        end = content.rfind(b"\n") + 1
        start = content.rfind(b"\n", 0, end - 1) + 1 if end else 0
        if end and (start or length == size):
            return _parsed(content[start : end - 1])[0], size - length + end
    return 0, 0


def _entries(content: bytes) -> list[tuple[int, bytes]]:
    whole = content[: content.rfind(b"\n") + 1]
    return [_parsed(line) for line in whole.split(b"\n")[:-1]]


def _parsed(line: bytes) -> tuple[int, bytes]:
    """Number and entry; raises StoreError."""
    number, blank, entry = line.partition(b" ")
    if not number.isdigit() or len(number) > 18 or not blank:
        raise StoreError(f"a line of the file is no entry of a conversation: {line[:80]!r}")
    return int(number), entry


def _line(number: int, entry: bytes) -> bytes:
    return b"%d %s\n" % (number, entry)


def _write(file: int, at: int, data: bytes) -> None:
    while data:
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written
