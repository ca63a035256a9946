"""Conversations in one SQLite file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from aiforge.core.types import ConversationMovedError, StoreError
from aiforge.modules.chat.stores.protocol import moved

T = TypeVar("T")

WAIT_SECONDS: Final = 30.0
"""How long a writer waits for another one."""

SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS aiforge_entries (
    conversation_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    entry BLOB NOT NULL,
    PRIMARY KEY (conversation_id, number)
) WITHOUT ROWID
"""


class SQLiteStore:
    """Conversations in the SQLite file at `path`, which is made when it is first used.

    Several processes of one machine may use it at once.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()
        self._guard = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    async def append(self, conversation_id: str, number: int, entry: bytes) -> None:
        def work(connection: sqlite3.Connection) -> None:
            last = "SELECT coalesce(max(number), 0) FROM aiforge_entries WHERE conversation_id = ?"
            (highest,) = connection.execute(last, (conversation_id,)).fetchone()
            if number != highest + 1:
                raise ConversationMovedError(moved(conversation_id, number))
            insert = "INSERT INTO aiforge_entries (conversation_id, number, entry) VALUES (?, ?, ?)"
            connection.execute(insert, (conversation_id, number, entry))

        await self._run(work)

    async def read(self, conversation_id: str, *, after: int = 0) -> list[tuple[int, bytes]]:
        def work(connection: sqlite3.Connection) -> list[tuple[int, bytes]]:
            query = (
                "SELECT number, entry FROM aiforge_entries"
                " WHERE conversation_id = ? AND number > ? ORDER BY number"
            )
            return connection.execute(query, (conversation_id, after)).fetchall()

        return await self._run(work, write=False)

    async def compact(self, conversation_id: str, number: int, entry: bytes) -> None:
        def work(connection: sqlite3.Connection) -> None:
            update = "UPDATE aiforge_entries SET entry = ? WHERE conversation_id = ? AND number = ?"
            if connection.execute(update, (entry, conversation_id, number)).rowcount == 0:
                raise ConversationMovedError(moved(conversation_id, number))
            delete = "DELETE FROM aiforge_entries WHERE conversation_id = ? AND number < ?"
            connection.execute(delete, (conversation_id, number))

        await self._run(work)

    async def delete(self, conversation_id: str) -> None:
        await self._run(
            lambda connection: connection.execute(
                "DELETE FROM aiforge_entries WHERE conversation_id = ?", (conversation_id,)
            )
        )

    async def conversations(self) -> list[str]:
        query = "SELECT DISTINCT conversation_id FROM aiforge_entries ORDER BY conversation_id"
        return await self._run(
            lambda connection: [name for (name,) in connection.execute(query)], write=False
        )

    async def close(self) -> None:
        def close() -> None:
            with self._guard:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None

        await asyncio.to_thread(close)

    async def _run(self, work: Callable[[sqlite3.Connection], T], *, write: bool = True) -> T:
        """`work` in a transaction of its own; a writer's begins with the lock that it needs."""

        def act() -> T:
            with self._guard:
                connection = self._open()
                connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                try:
                    result = work(connection)
                except BaseException:
                    connection.rollback()
                    raise
                connection.commit()
                return result

        try:
            return await asyncio.to_thread(act)
        except (sqlite3.Error, OSError) as error:
            raise StoreError(f"{self._path}: {error}") from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self._path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.execute(SCHEMA)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection
