"""Files: what a batch reads and what it writes, stored piece by piece and read as a stream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Final, Literal

import msgspec

from worker.contract import records
from worker.contract.batch.shelves import PIECE, UPLOAD_TTL_MS, RedisShelf, Shelf, UrlShelf, Writing
from worker.contract.errors import Conflict, InvalidInput, NotFound, Unavailable
from worker.contract.ids import SHARDS, is_file_id, new_file_id, shard_of_id
from worker.contract.index import STOOD_MS, Index
from worker.contract.keys import Keys
from worker.contract.server.connection import Connection
from worker.contract.server.link import Argument
from worker.contract.settings import ContractSettings

FILE_VERSION: Final = 1
LONGEST_NAME: Final = 255
SHORTEST_LIFE: Final = 3_600
LONGEST_LIFE: Final = 2_592_000
"""Seconds that a caller may give a file to live."""
Purpose = Literal["batch", "batch_output"]


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file as callers see it. Times are Unix seconds; `expires_at` is None for one that stays."""

    file_id: str
    filename: str
    purpose: Purpose
    bytes: int
    created_at: float
    expires_at: float | None = None


class Upload:
    """A file on its way. Nobody can read it before it is sealed; one that never is disappears."""

    def __init__(
        self,
        store: FileStore,
        writing: Writing,
        *,
        file_id: str,
        tenant: str,
        filename: str,
        purpose: Purpose,
        ttl_seconds: float | None,
        shared: bool,
    ) -> None:
        """`shared`: others may write the same bytes under the same id."""
        self._store = store
        self._writing = writing
        self._shared = shared
        self.file_id = file_id
        self.tenant = tenant
        self.filename = filename
        self.purpose: Purpose = purpose
        self.ttl_seconds = ttl_seconds
        self.bytes = 0
        self.pieces = 0
        self._rest = bytearray()

    async def write(self, data: bytes) -> None:
        """Add bytes; raises Unavailable when they cannot be stored."""
        self.bytes += len(data)
        self._rest += data
        while len(self._rest) >= PIECE:
            piece = bytes(self._rest[:PIECE])
            del self._rest[:PIECE]
            await self._put(piece)

    async def seal(self) -> File:
        """Make the file readable; sealing one that was sealed before returns it as it is."""
        if self._rest:
            await self._put(bytes(self._rest))
            self._rest.clear()
        await self._writing.close()
        return await self._store.seal(self)

    async def abandon(self) -> None:
        """Give the file up: nothing of it stays, but for pieces that another may be writing, too."""
        await self._writing.abandon()
        if not self._shared:
            with contextlib.suppress(Unavailable):
                await self._store.forget(self)

    async def _put(self, piece: bytes) -> None:
        await self._store.note(self.file_id)
        await self._writing.put(self.pieces, piece)
        self.pieces += 1


class FileStore:
    """Typed access to files; safe to share within one event loop."""

    def __init__(self, connection: Connection, settings: ContractSettings) -> None:
        self.connection = connection
        self.keys = Keys(settings.namespace)
        self._lives = settings.file_ttl_seconds
        self._index = Index(connection)
        self._here = RedisShelf(connection, self.keys)
        self._shelf: Shelf = (
            UrlShelf(settings.files_url, settings.namespace) if settings.files_url else self._here
        )

    async def begin(
        self,
        tenant: str,
        filename: str,
        purpose: Purpose,
        *,
        ttl_seconds: float | None = None,
        file_id: str | None = None,
    ) -> Upload:
        """Begin to write a file, which lives for `ttl_seconds` (None: as the settings say, 0: for ever).

        Under a `file_id` of one's own the same bytes can be written again, by another process, too.
        """
        name = file_id or new_file_id(tenant)
        writing = await self._shelf.open(name)
        try:
            await self.note(name)
        except BaseException:
            await writing.abandon()
            raise
        return Upload(
            self, writing, file_id=name, tenant=tenant, filename=filename, purpose=purpose,
            ttl_seconds=ttl_seconds, shared=file_id is not None,
        )  # fmt: skip

    async def note(self, file_id: str) -> None:
        """Let what is written outside of Redis be deleted if its writer is not heard of again."""
        if self._shelf is not self._here:
            names = [self.keys.file(file_id), self.keys.due(shard_of_id(file_id))]
            await self.connection.run("file_begin", names, [file_id, UPLOAD_TTL_MS])

    async def seal(self, upload: Upload) -> File:
        lives = self._lives if upload.ttl_seconds is None else upload.ttl_seconds
        arguments: list[Argument] = [
            upload.file_id, upload.pieces, int(lives * 1000), self._shelf.place, "version", FILE_VERSION,
            "tenant", upload.tenant, "filename", upload.filename, "purpose", upload.purpose,
            "bytes", upload.bytes,
        ]  # fmt: skip
        keys = self.keys.of_file(upload.file_id, upload.tenant)
        sealed = await self.connection.run("file_seal", keys, arguments)
        if not sealed:
            raise Conflict("a piece of the file is gone: the upload took too long", code="upload_expired")
        return await self.get(upload.file_id, upload.tenant)

    async def forget(self, upload: Upload) -> None:
        """Delete what there is of an upload: pieces, or a whole file of whose end the word was lost."""
        await self._shelf.drop(upload.file_id)
        keys = self.keys.of_file(upload.file_id, upload.tenant)
        await self.connection.run("file_delete", keys, [upload.file_id])

    async def get(self, file_id: str, tenant: str) -> File:
        """Raises NotFound when the tenant has no such file."""
        return _file(file_id, await self._record(file_id, tenant))

    async def read(self, file_id: str, tenant: str) -> AsyncIterator[bytes]:
        """The bytes, a piece at a time; raises NotFound, and Unavailable when they cannot be had now."""
        record = await self._record(file_id, tenant)
        shelf = self._shelf_of(record)
        async for piece in shelf.read(file_id, int(record["pieces"])):
            yield piece

    async def page(
        self,
        tenant: str,
        *,
        after: str | None = None,
        limit: int = 100,
        oldest_first: bool = False,
        purpose: str | None = None,
    ) -> list[File]:
        """Files of a tenant by when they were made, behind the one named by `after`."""
        found: list[File] = []
        position = None
        if after is not None:
            stood = await self._index.stood(self.keys.stood(tenant, after))
            position = stood or round((await self.get(after, tenant)).created_at * 1000), after
        names = [self.keys.files(tenant, shard) for shard in range(SHARDS)]
        kept = self._index.records(names, position, limit, own=self.keys.file, oldest_first=oldest_first)
        async for file_id, record in kept:
            file = _file(file_id, record)
            if purpose is None or file.purpose == purpose:
                found.append(file)
            if len(found) == limit:
                break
        return found

    async def check_input(self, file_id: str, tenant: str) -> None:
        """Raises InvalidInput unless a batch can be made of this file."""
        if not is_file_id(file_id):
            raise InvalidInput(
                f"input_file_id: {file_id[:64]!r} is no file's id, which looks like"
                " file-171f0a93c2d4e5b6a7f809",
                param="input_file_id",
            )
        with contextlib.suppress(NotFound):
            if (await self.get(file_id, tenant)).purpose == "batch":
                return
        raise InvalidInput(
            f"input_file_id: there is no file {file_id!r} with purpose batch", param="input_file_id"
        )

    async def delete(self, file_id: str, tenant: str) -> None:
        """Delete a file and its bytes. Raises NotFound."""
        record = await self._record(file_id, tenant)
        await self._shelf_of(record).drop(file_id)
        await self.connection.run("file_delete", self.keys.of_file(file_id, tenant), [file_id, STOOD_MS])

    async def later(self, file_id: str, seconds: float) -> None:
        """Let a file whose time is over be listed again after so many seconds, unless it is gone by then."""
        due = self.keys.due(shard_of_id(file_id))
        await self.connection.run("file_later", [due], [file_id, int(seconds * 1000)])

    async def expire(self, file_id: str) -> None:
        """Delete a file whose time is over, whoever it belongs to, or what there is of an unsealed one."""
        tenant = await self.connection.command("HGET", self.keys.file(file_id), "tenant")
        if tenant is not None:
            await self.delete(file_id, tenant.decode())
            return
        await self._shelf.drop(file_id)
        await self.connection.run("file_delete", self.keys.of_file(file_id, ""), [file_id, STOOD_MS])

    def _shelf_of(self, record: dict[str, bytes]) -> Shelf:
        place = record["place"].decode()
        if place == self._here.place:
            return self._here
        if place != self._shelf.place:
            raise InvalidInput("the file's bytes are at another place than AIFORGE_FILES_URL")
        return self._shelf

    async def _record(self, file_id: str, tenant: str) -> dict[str, bytes]:
        record: dict[str, bytes] = {}
        if is_file_id(file_id):
            record = records.fields(await self.connection.command("HGETALL", self.keys.file(file_id)))
        if record.get("tenant") != tenant.encode():
            raise NotFound(f"file {file_id[:64]!r} does not exist")
        return record


def _file(file_id: str, record: dict[str, bytes]) -> File:
    return File(
        file_id=file_id,
        filename=record["filename"].decode(),
        purpose=msgspec.convert(record["purpose"].decode(), Purpose),
        bytes=int(record["bytes"]),
        created_at=int(record["created_at"]) / 1000,
        expires_at=records.seconds(record.get("expires_at")),
    )
