"""What an earlier run has answered: on disk, by what was asked.

An answer belongs to a question with the same id and the same digest of all that was sent, wherever it
stands now: rows may have been moved, added and taken out. Of equal questions without ids each answer
belongs to one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from aiforge.questions.ids import short, temporary
from aiforge.questions.question import Question
from aiforge.questions.shape import Written

NOT_ASKED: Final = ("cancel", "expire")
"""In error classes: the question was never asked to the end, so it is asked again."""

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
            error = str(row.record.get("error_class") or "")
            failed = row.record["status"] != "ok"
            if not failed or not (retry_failed or any(word in error for word in NOT_ASKED)):
                key = short(str(row.record.get("id") or ""), str(row.record["digest"]))
                self._database.execute("INSERT INTO rows VALUES (?, ?, ?)", (key, failed, row.start))
        return end

    def match(self, questions: Iterable[Question], shared: Mapping[str, Any]) -> tuple[int, int]:
        """Give every question its row, where there is one; how many have one, and one of a failure."""
        for place, question in enumerate(questions):
            key = short(question.id or "", question.digest(shared))
            self._database.execute("INSERT INTO wanted VALUES (?, ?)", (key, place))
        self._database.execute(_MATCH)
        self._database.execute("CREATE INDEX used ON answers (start)")
        self._database.execute("DROP TABLE wanted")
        count, failed = self._database.execute("SELECT count(*), sum(failed) FROM answers").fetchone()
        return int(count), int(failed or 0)

    def note(self, place: int, start: int) -> None:
        """The row that begins there answers this question."""
        self._database.execute("INSERT INTO answers VALUES (?, ?, 0)", (place, start))

    def start_of(self, place: int) -> int | None:
        found = self._database.execute("SELECT start FROM answers WHERE place = ?", (place,)).fetchone()
        return None if found is None else int(found[0])

    def is_used(self, start: int) -> bool:
        """Whether the row that begins there answers a question of the input."""
        return bool(self._database.execute("SELECT 1 FROM answers WHERE start = ?", (start,)).fetchone())
