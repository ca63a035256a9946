"""What an earlier run has answered: on disk, by what was asked.

An answer belongs to a question with the same id and the same digest of all that was sent, wherever it
stands now: rows may have been moved, added and taken out. Of equal questions without ids each answer
belongs to one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from aiforge.questions.ids import short, temporary
from aiforge.questions.question import Question
from aiforge.questions.shape import Written

NOT_ASKED: Final = frozenset(
    {"cancelled", "expired", "batch_cancelled", "batch_expired", "budget_exceeded", "unpriced_model"}
)
"""Error classes of what was never asked to the end, so it is asked again."""

_MATCH: Final = """
    WITH asked AS (
        SELECT key, place, row_number() OVER (PARTITION BY key ORDER BY place) AS number FROM wanted
    ), found AS (
        SELECT key, start, failed, row_number() OVER (PARTITION BY key ORDER BY failed, start) AS number
        FROM rows
    )
    INSERT INTO answers SELECT asked.place, found.start, found.failed FROM asked JOIN found
    ON found.key = asked.key AND found.number = asked.number ORDER BY asked.place
"""
"""The n-th of equal questions gets the n-th of their rows, good ones first; sorted, not searched."""


def key_of(question: Question, shared: Mapping[str, Any]) -> bytes:
    """What makes a question the one that an earlier run has asked."""
    return short(question.id or "", question.digest(shared))


class Past:
    """Rows that are there, and which of them answers which question of the input."""

    def __init__(self) -> None:
        self._database = temporary()
        self._database.execute("CREATE TABLE rows (key BLOB, failed INTEGER, start INTEGER)")
        self._database.execute("CREATE TABLE wanted (key BLOB, place INTEGER)")
        self._database.execute(
            "CREATE TABLE answers (place INTEGER PRIMARY KEY, start INTEGER, failed INTEGER)"
        )

    def close(self) -> None:
        self._database.close()

    def load(self, rows: Iterable[Written], end: int, *, retry_failed: bool) -> int:
        """Note what is there; the end of the last whole row, `end` where there is none."""
        for row in rows:
            end = row.end
            failed = row.record["status"] != "ok"
            if not failed or not (retry_failed or row.record.get("error_class") in NOT_ASKED):
                key = short(str(row.record.get("id") or ""), str(row.record["digest"]))
                self._database.execute("INSERT INTO rows VALUES (?, ?, ?)", (key, failed, row.start))
        return end

    def match(self, questions: Iterable[Question], shared: Mapping[str, Any]) -> tuple[int, int]:
        """Give every question its row, where there is one; how many have one, and one of a failure."""
        for place, question in enumerate(questions):
            self._database.execute("INSERT INTO wanted VALUES (?, ?)", (key_of(question, shared), place))
        self._database.execute(_MATCH)
        self._database.execute("DROP TABLE wanted")
        count, failed = self._database.execute("SELECT count(*), sum(failed) FROM answers").fetchone()
        return int(count), int(failed or 0)

    def note(self, place: int, start: int) -> None:
        """The row that begins there answers this question."""
        self._database.execute("INSERT INTO answers VALUES (?, ?, 0)", (place, start))

    def start_of(self, place: int) -> int | None:
        found = self._database.execute("SELECT start FROM answers WHERE place = ?", (place,)).fetchone()
        return None if found is None else int(found[0])

    def sorted_out(self, rows: Iterable[Written]) -> Iterator[tuple[Written, bool]]:
        """Rows, and whether they answer a question of the input."""
        self._database.execute("CREATE INDEX IF NOT EXISTS used ON answers (start)")
        for row in rows:
            found = self._database.execute("SELECT 1 FROM answers WHERE start = ?", (row.start,))
            yield row, found.fetchone() is not None
