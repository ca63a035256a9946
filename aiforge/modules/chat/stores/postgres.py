"""Conversations in a PostgreSQL database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, TypeVar

from aiforge.core.types import ConfigError, ConversationMovedError, StoreError
from aiforge.modules.chat.stores.protocol import moved

T = TypeVar("T")

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS aiforge_entries (
    conversation_id text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    entry bytea NOT NULL,
    PRIMARY KEY (conversation_id, number)
)
"""
SCHEMA_LOCK: Final = 0x61696667
"""Two that create the table at the same moment would collide in PostgreSQL's own catalogue."""


class PostgresStore:
    """Conversations in the table `aiforge_entries` of the database at `url`, made when it is missing.

    Any number of processes may use it at once. One connection, opened at the first use and again
    after a failure. Raises ConfigError when the extra `postgres` is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            # An extra: loaded where it is chosen, not where it might be.
            self._psycopg: Any = import_module("psycopg")
        except ImportError:
            raise ConfigError(
                "PostgresStore needs a package of its own: pip install aiforge[postgres]"
            ) from None
        self._url = url
        self._guard = threading.Lock()
        self._connection: Any = None

    async def append(self, conversation_id: str, number: int, entry: bytes) -> None:
        insert = (
            "INSERT INTO aiforge_entries (conversation_id, number, entry)"
            " SELECT %(id)s, %(number)s, %(entry)s WHERE"
            " (SELECT coalesce(max(number), 0) FROM aiforge_entries WHERE conversation_id = %(id)s)"
            " = %(number)s - 1 ON CONFLICT DO NOTHING"
        )
        values = {"id": conversation_id, "number": number, "entry": entry}
        if await self._run(lambda connection: connection.execute(insert, values).rowcount) == 0:
            raise ConversationMovedError(moved(conversation_id, number))

    async def read(self, conversation_id: str, *, after: int = 0) -> list[tuple[int, bytes]]:
        query = (
            "SELECT number, entry FROM aiforge_entries"
            " WHERE conversation_id = %s AND number > %s ORDER BY number"
        )
        rows = await self._run(
            lambda connection: connection.execute(query, (conversation_id, after)).fetchall()
        )
        return [(number, bytes(entry)) for number, entry in rows]

    async def compact(self, conversation_id: str, number: int, entry: bytes) -> None:
        update = "UPDATE aiforge_entries SET entry = %s WHERE conversation_id = %s AND number = %s"
        delete = "DELETE FROM aiforge_entries WHERE conversation_id = %s AND number < %s"

        def work(connection: Any) -> None:
            if connection.execute(update, (entry, conversation_id, number)).rowcount == 0:
                raise ConversationMovedError(moved(conversation_id, number))
            connection.execute(delete, (conversation_id, number))

        await self._run(work)

    async def delete(self, conversation_id: str) -> None:
        query = "DELETE FROM aiforge_entries WHERE conversation_id = %s"
        await self._run(lambda connection: connection.execute(query, (conversation_id,)))

    async def conversations(self) -> list[str]:
        query = "SELECT DISTINCT conversation_id FROM aiforge_entries ORDER BY conversation_id"
        rows = await self._run(lambda connection: connection.execute(query).fetchall())
        return [name for (name,) in rows]

    async def close(self) -> None:
        def close() -> None:
            with self._guard:
                self._drop()

        await asyncio.to_thread(close)

    async def _run(self, work: Callable[[Any], T]) -> T:
        """`work` in a transaction of its own, on a thread."""

        def act() -> T:
            with self._guard:
                try:
                    connection = self._open()
                    with connection.transaction():
                        return work(connection)
                except self._psycopg.Error:
                    self._drop()
                    raise

        try:
            return await asyncio.to_thread(act)
        except self._psycopg.Error as error:
            raise StoreError(f"PostgreSQL: {error}") from error

    def _open(self) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = self._psycopg.connect(self._url, autocommit=True)
            with self._connection.transaction():
                self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
                self._connection.execute(SCHEMA)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(self._psycopg.Error):
                self._connection.close()
            self._connection = None
