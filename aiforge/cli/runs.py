"""What a run of `aiforge batch run` leaves beside its output while not every question has been asked.

It notes every batch before it is posted, with what it asks. So the same command, started again after a
detach, a kill or a stop at its cost, and with whatever input, knows what is at work for which of its
questions. The file is the run's lock, too: one command at a time writes an output, and the lock dies with
its process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Self
from urllib.parse import quote

import msgspec

from aiforge.cli.errors import CommandError
from aiforge.client import Item
from aiforge.questions.output import real
from aiforge.questions.question import Question

_TABLES: Final = """
    CREATE TABLE IF NOT EXISTS batches (number INTEGER PRIMARY KEY, token TEXT, id TEXT, posting BLOB);
    CREATE TABLE IF NOT EXISTS items (
        batch INTEGER, number INTEGER, key BLOB, PRIMARY KEY (batch, number)
    ) WITHOUT ROWID;
    CREATE TEMP TABLE places (
        batch INTEGER, number INTEGER, place INTEGER, PRIMARY KEY (batch, number)
    ) WITHOUT ROWID;
    CREATE TEMP TABLE wanted (key BLOB, place INTEGER);
"""
_MATCH: Final = """
    WITH asked AS (
        SELECT key, place, row_number() OVER (PARTITION BY key ORDER BY place DESC) AS number FROM wanted
    ), posted AS (
        SELECT key, batch, number AS item,
            row_number() OVER (PARTITION BY key ORDER BY batch DESC, number DESC) AS number FROM items
    )
    INSERT INTO places SELECT posted.batch, posted.item, asked.place FROM asked JOIN posted
    ON posted.key = asked.key AND posted.number = asked.number
"""
"""Of equal items the last ones are meant: the rows of the first ones are taken first."""


class Posting(msgspec.Struct, frozen=True):
    """A batch as it is sent."""

    items: list[Item]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Noted:
    """A batch of this run. Under its `token` it is posted once; while `posting` is there, nobody knows
    whether it was."""

    number: int
    token: str
    id: str | None
    posting: Posting | None


class Run:
    """One run into a file, or into stdout, where nothing is left; it holds the lock until it is closed.

    Raises CommandError where another command has the lock, or the file is none of a run, and OSError where
    the disk is full or gone.
    """

    def __init__(self, target: str) -> None:
        path = real(Path(target))
        self.is_file = target != "-"
        self.name = target if self.is_file else "stdout"
        self._path = run_file(path) if self.is_file else None
        self._lock = None if self._path is None else _locked(self._path, target)
        # The lock holds off everybody else, so SQLite needs none of its own.
        where = "" if self._path is None else f"file:{quote(str(self._path))}?nolock=1"
        self._database = sqlite3.connect(where, uri=True, isolation_level=None)
        try:
            self._database.executescript(_TABLES)
        except sqlite3.OperationalError as error:
            self._close()
            raise self._failed(error) from None
        except sqlite3.DatabaseError:
            self._close()
            raise CommandError(
                f"{self._path}: does not say what an earlier command has posted; remove it, and what is not"
                f" in {target} is asked anew"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.has_posted:
            self.end()
        self._close()

    @property
    def has_posted(self) -> bool:
        """Whether there is a batch of this run, of whatever command."""
        return self._database.execute("SELECT 1 FROM batches").fetchone() is not None

    def noted(self) -> Iterator[Noted]:
        """The batches of earlier commands, in their order."""
        for (number,) in self._database.execute("SELECT number FROM batches ORDER BY number").fetchall():
            found = self._database.execute(
                "SELECT token, id, posting FROM batches WHERE number = ?", (number,)
            )
            token, name, posting = found.fetchone()
            sent = None if posting is None else msgspec.json.decode(posting, type=Posting)
            yield Noted(number, token, name, sent)

    def match(self, wanted: Iterable[tuple[int, bytes]]) -> None:
        """Find which of these questions, with place and key, those batches are asked."""
        with self._transaction():
            self._database.executemany(
                "INSERT INTO wanted VALUES (?, ?)", ((key, place) for place, key in wanted)
            )
            self._database.execute(_MATCH)
            self._database.execute("DELETE FROM wanted")

    def note(self, posting: Posting, asked: Sequence[tuple[int, bytes]]) -> Noted:
        """A batch that is about to be posted; `asked` has place and key of each of its items."""
        token = f"run-{token_hex(16)}"
        with self._transaction():
            found = self._database.execute(
                "INSERT INTO batches (token, posting) VALUES (?, ?)", (token, msgspec.json.encode(posting))
            )
            number = int(found.lastrowid or 0)
            items = enumerate(asked)
            self._database.executemany(
                "INSERT INTO items VALUES (?, ?, ?)", ((number, item, key) for item, (_, key) in items)
            )
            places = enumerate(asked)
            self._database.executemany(
                "INSERT INTO places VALUES (?, ?, ?)", ((number, item, place) for item, (place, _) in places)
            )
        return Noted(number, token, None, posting)

    def posted(self, noted: Noted, batch_id: str) -> None:
        """The service has taken it."""
        with self._transaction():
            self._database.execute(
                "UPDATE batches SET id = ?, posting = NULL WHERE number = ?", (batch_id, noted.number)
            )

    def forget(self, number: int) -> None:
        """A batch that the service does not know any more."""
        with self._transaction():
            self._database.execute("DELETE FROM batches WHERE number = ?", (number,))
            self._database.execute("DELETE FROM items WHERE batch = ?", (number,))
            self._database.execute("DELETE FROM places WHERE batch = ?", (number,))

    def first(self, number: int) -> int | None:
        """The first item of a batch that is wanted, None where none is."""
        found = self._database.execute("SELECT min(number) FROM places WHERE batch = ?", (number,)).fetchone()
        return None if found[0] is None else int(found[0])

    def place(self, number: int, item: int) -> int | None:
        """The place of the question that an item of a batch asks, None where nobody wants it."""
        found = self._database.execute(
            "SELECT place FROM places WHERE batch = ? AND number = ?", (number, item)
        ).fetchone()
        return None if found is None else int(found[0])

    def places(self) -> Iterator[int]:
        """The places of all questions that batches are at work for, in their order."""
        for (place,) in self._database.execute("SELECT place FROM places ORDER BY place"):
            yield int(place)

    def without(self, pending: Iterable[tuple[int, Question]]) -> Iterator[tuple[int, Question]]:
        """Of these questions in their order those that no batch is at work for."""
        places = self.places()
        asked = next(places, None)
        for place, question in pending:
            while asked is not None and asked < place:
                asked = next(places, None)
            if place != asked:
                yield place, question

    def release(self, number: int) -> None:
        """No more rows come from this batch."""
        self._database.execute("DELETE FROM places WHERE batch = ?", (number,))

    def drop(self, number: int, items: Iterable[int]) -> None:
        """No rows that are wanted come from these items of a batch."""
        with self._transaction():
            self._database.executemany(
                "DELETE FROM places WHERE batch = ? AND number = ?", ((number, item) for item in items)
            )

    def end(self) -> None:
        """All is asked and written: the next command begins a run of its own."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _close(self) -> None:
        self._database.close()
        if self._lock is not None:
            os.close(self._lock)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Raises OSError where the disk is full or gone."""
        try:
            with self._database:
                self._database.execute("BEGIN")
                yield
        except sqlite3.Error as error:
            raise self._failed(error) from None

    def _failed(self, error: sqlite3.Error) -> OSError:
        return OSError(errno.EIO, str(error), str(self._path or "a temporary file"))


@contextmanager
def earlier(target: str) -> Iterator[Run | None]:
    """The run into this file that is not over; None where there is none."""
    if target == "-" or not run_file(real(Path(target))).exists():
        yield None
        return
    with Run(target) as run:
        yield run


def run_file(path: Path) -> Path:
    """Where a run into this file notes its batches."""
    return path.with_name(f".{path.name}.run")


def _locked(path: Path, target: str) -> int:
    """The descriptor of the locked file; raises CommandError when another process has it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise CommandError(
                f"{target}: another command writes into it; wait for its end, or name another file with -o"
            ) from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)  # its last holder has ended that run meanwhile
