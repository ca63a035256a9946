"""Where the bytes of files are kept: in Redis, in compressed pieces, or at a URL that fsspec knows."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Protocol, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from aiforge.core.types import ConfigError
from worker.contract.errors import ContractError, NotFound, Unavailable
from worker.contract.keys import Keys
from worker.contract.server.connection import Connection

PIECE: Final = 1024 * 1024
"""Bytes that are stored and read at a time."""
UPLOAD_TTL_MS: Final = 3_600_000
_FASTEST: Final = 1
_PART: Final = ".part"
T = TypeVar("T")


class Writing(Protocol):
    """A file whose bytes are on their way; all pieces but the last have `PIECE` bytes."""

    async def put(self, number: int, piece: bytes) -> None: ...
    async def close(self) -> None: ...
    async def abandon(self) -> None: ...


class Shelf(Protocol):
    """Keeps bytes under file ids."""

    place: str
    """What a file's record says of where its bytes are; '' is Redis itself."""

    async def open(self, file_id: str) -> Writing: ...
    def read(self, file_id: str, pieces: int) -> AsyncIterator[bytes]: ...
    async def drop(self, file_id: str) -> None: ...


class RedisShelf:
    """Pieces in a list, beside the record of the file and gone with it."""

    place = ""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys

    async def open(self, file_id: str) -> Writing:
        return _RedisWriting(self._connection, self._keys.pieces(file_id))

    async def read(self, file_id: str, pieces: int) -> AsyncIterator[bytes]:
        for number in range(pieces):
            piece = await self._connection.command("LINDEX", self._keys.pieces(file_id), number)
            if piece is None:
                raise NotFound(f"file {file_id!r} was deleted while it was read")
            yield await asyncio.to_thread(zlib.decompress, piece)

    async def drop(self, file_id: str) -> None:
        """The script that deletes the record deletes the pieces."""


class _RedisWriting:
    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name

    async def put(self, number: int, piece: bytes) -> None:
        packed = await asyncio.to_thread(zlib.compress, piece, _FASTEST)
        await self._connection.run("file_piece", [self._name], [number, UPLOAD_TTL_MS, packed])

    async def close(self) -> None:
        """Every piece is stored already."""

    async def abandon(self) -> None:
        """Whoever gives the file up deletes the pieces, unless others write them, too."""


class UrlShelf:
    """One object a file, below a URL; it is there whole or not at all."""

    def __init__(self, url: str, namespace: str) -> None:
        self.place = url
        try:
            self._files, root = fsspec.core.url_to_fs(url, skip_instance_cache=True)
        except (ValueError, ImportError) as error:
            raise ConfigError(f"AIFORGE_FILES_URL: {error}") from None
        if self._files.protocol == "memory":
            raise ConfigError("AIFORGE_FILES_URL: memory:// is each process's own, and nobody else's")
        self._folder = f"{root.rstrip('/')}/{namespace}"
        self._here = isinstance(self._files, LocalFileSystem)

    async def open(self, file_id: str) -> Writing:
        path = self._path(file_id)

        def opened() -> Any:
            self._files.makedirs(self._folder, exist_ok=True)
            if self._here:
                # fsspec's own temporary file would stand on another disk, and stay there after a crash.
                return _Part(path)
            return self._files.open(path, "wb", autocommit=False)

        return _UrlWriting(await _aside(opened))

    async def read(self, file_id: str, pieces: int) -> AsyncIterator[bytes]:
        source = await _aside(lambda: self._files.open(self._path(file_id), "rb"), missing=NotFound)
        try:
            while piece := await _aside(lambda: source.read(PIECE)):
                yield piece
        finally:
            await _aside(source.close)

    async def drop(self, file_id: str) -> None:
        path = self._path(file_id)
        for part in await _aside(lambda: _Part.of(path)) if self._here else ():
            await self._remove(part)
        await self._remove(path)

    async def _remove(self, path: str) -> None:
        with contextlib.suppress(NotFound):
            await _aside(lambda: self._files.rm_file(path), missing=NotFound)

    def _path(self, file_id: str) -> str:
        return f"{self._folder}/{file_id}"


class _UrlWriting:
    def __init__(self, target: Any) -> None:
        self._target = target

    async def put(self, number: int, piece: bytes) -> None:
        await _aside(lambda: self._target.write(piece))

    async def close(self) -> None:
        await _aside(self._target.close)
        await _aside(self._target.commit)

    async def abandon(self) -> None:
        with contextlib.suppress(Unavailable):
            await _aside(self._target.discard)
        if isinstance(self._target, AbstractBufferedFile):
            # Who collects an open one writes it after all.
            self._target.closed = True


class _Part:
    """A file of this machine that stands beside its place until it is whole."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._part = Path(f"{path}.{token_hex(4)}{_PART}")
        self._target = self._part.open("xb")
        self.write = self._target.write
        self.close = self._target.close

    @staticmethod
    def of(path: str) -> list[str]:
        """The parts that there are of a file."""
        place = Path(path)
        return [str(part) for part in place.parent.glob(f"{place.name}.*{_PART}")]

    def commit(self) -> None:
        self._part.replace(self._path)

    def discard(self) -> None:
        self.close()
        self._part.unlink(missing_ok=True)


async def _aside(work: Callable[[], T], missing: type[ContractError] = Unavailable) -> T:
    """What blocks, in a thread; raises `missing` when there is no such file, Unavailable for all else."""
    try:
        return await asyncio.to_thread(work)
    except FileNotFoundError as error:
        raise missing(f"AIFORGE_FILES_URL: {error}") from None
    except Exception as error:  # each kind of store has errors of its own
        raise Unavailable(f"AIFORGE_FILES_URL: {type(error).__name__}: {error}") from error
