"""Which ids there were already: on disk, since a million of them do not fit beside everything else."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, Self

CACHE_KIB: Final = 8 * 1024
"""What SQLite keeps in memory of a temporary file."""
_SHOWN: Final = 80


def temporary() -> sqlite3.Connection:
    """A database in a file that disappears with its connection."""
    database = sqlite3.connect("", isolation_level=None)
    database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    database.execute("BEGIN")
    return database


def short(*texts: str) -> bytes:
    """16 bytes that stand for these texts."""
    return blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Ids:
    """The ids of one file with their lines, sorted once all are known: that reads no page twice."""

    def __init__(self) -> None:
        self._database = temporary()
        self._database.execute("CREATE TABLE ids (key BLOB, id TEXT, line INTEGER)")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def add(self, id_: str, line: int) -> None:
        self._database.execute("INSERT INTO ids VALUES (?, ?, ?)", (short(id_), id_[:_SHOWN], line))

    def repeated(self) -> Iterator[tuple[str, int, int]]:
        """Ids that stand there again (their beginnings), with their line and the id's first line."""
        yield from self._database.execute(
            "SELECT id, line, first FROM"
            " (SELECT id, line, min(line) OVER (PARTITION BY key) AS first FROM ids) WHERE line > first"
        )
