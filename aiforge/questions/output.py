"""An output that is written as answers come, and continued where an earlier run of it ended.

A killed run leaves whole rows and at most one torn one, which the next run cuts off. The next run adds
its rows below those that are there; only when all are there it writes the file anew in the order of the
input, beside the old one, and puts it in its place. So no answer is ever lost on the way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Self

from aiforge.questions.jsonl import as_json
from aiforge.questions.past import Past
from aiforge.questions.question import Question
from aiforge.questions.reading import Questions
from aiforge.questions.shape import Record, Shape, question_record, rows_in, shape_of

_BUFFER: Final = 64 * 1024
_OF_ERRORS: Final = ("index", "id", "question", "status", "error_class", "error_message", "model", "attempts")


class Output:
    """The rows of one run, into a file, or into a stream where there is no past.

    `shared` are the options of all questions: they and the question decide whether an answer that is
    there is still the answer.
    """

    def __init__(
        self, target: Path | IO[bytes], shape: Shape, questions: Questions, shared: Mapping[str, Any]
    ) -> None:
        self._path = target if isinstance(target, Path) else None
        self._file: IO[bytes] | None = None if isinstance(target, Path) else target
        self._shape = self._final_shape = shape
        self._questions = questions
        self._shared = shared
        self._past: Past | None = None
        self._buffer = bytearray()
        self._end = 0
        self._first_new = 0
        self._has_errors = False
        self.count = questions.count
        self.kept = self.kept_failed = 0
        """Rows of earlier runs that still answer their question, and how many of them are failures."""
        self.written = self.written_failed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._past is not None:
            self._past.close()
        if self._path is not None and self._file is not None:
            self._file.close()

    def begin(self, *, retry_failed: bool = False, since: int | None = None) -> None:
        """Find what is answered already and make ready to write; raises NotOurs for somebody else's file.

        With `since`, what `first_new` was in a run that was broken off, that run is gone on with.
        """
        path = self._path
        there = shape_of(path, self._shape) if path is not None and path.exists() else None
        if path is not None and there is not None:
            self._shape = there
            self._past = Past()
            with path.open("rb") as file:
                file.seek(len(there.header))
                rows = rows_in(file, path, there)
                self._end = self._past.load(rows, len(there.header), retry_failed=retry_failed)
            self.kept, self.kept_failed = self._past.match(self._questions, self._shared)
            self._first_new = self._end if since is None or since > self._end else since
            self._file = path.open("r+b", buffering=0)
            self._file.truncate(self._end)
            self._file.seek(self._end)
        else:
            self._put(self._shape.header)

    @property
    def first_new(self) -> int:
        """Where in the file the rows of this run begin."""
        return self._first_new

    def has(self, place: int) -> bool:
        """Whether the question at a place has its row."""
        return self._past is not None and self._past.start_of(place) is not None

    def pending(self) -> Iterator[tuple[int, Question]]:
        """The questions that had no answer when this run began, with their places in the input."""
        for place, question in enumerate(self._questions):
            start = None if self._past is None else self._past.start_of(place)
            if start is None or start >= self._first_new:
                yield place, question

    def write(self, place: int, question: Question, answer: Record) -> None:
        """One row; the next flush brings it into the file at the latest."""
        record = {**answer, **question_record(place, question, question.digest(self._shared))}
        if self._past is not None:
            self._past.note(place, self._end)
        failed = record["status"] != "ok"
        self._has_errors = self._has_errors or failed
        self.written_failed += failed
        self._put(self._shape.row(record, question.extra))
        self.written += 1
        if len(self._buffer) > _BUFFER:
            self.flush()

    def _put(self, row: bytes) -> None:
        self._buffer += row
        self._end += len(row)

    def flush(self) -> None:
        """Whole rows only, in one write as far as the system does that."""
        if self._file is None and self._path is not None:
            self._file = self._path.open("wb", buffering=0)
        rest = bytes(self._buffer)
        self._buffer.clear()
        while rest and self._file is not None:
            rest = rest[self._file.write(rest) :]
        if self._path is None and self._file is not None:
            self._file.flush()

    def finish(self) -> Path | None:
        """Put a continued output into the input's order, if it is whole; the file of errors, if there is one.

        One that is not whole stays as it is, for the next run.
        """
        self.flush()
        if self._path is None:
            return None
        if self._past is not None and self.kept + self.written == self.count:
            self._rewrite(self._path, self._past)
            self._past.close()
            self._past = None
        return self._write_errors(self._path)

    def _rewrite(self, path: Path, past: Past) -> None:
        with path.open("rb") as source, replacing(path) as file:
            file.write(self._final_shape.header)
            for place, question in enumerate(self._questions):
                source.seek(past.start_of(place) or 0)
                row = next(rows_in(source, path, self._shape)).record
                fixed = question_record(place, question, question.digest(self._shared))
                self._has_errors = self._has_errors or row["status"] != "ok"
                file.write(self._final_shape.row({**row, **fixed}, question.extra))
        self._shape = self._final_shape

    def _write_errors(self, path: Path) -> Path | None:
        target = path.with_name(f"{path.stem}.errors.jsonl")
        if self._past is None and not self._has_errors:
            target.unlink(missing_ok=True)
            return None
        found = False
        with path.open("rb") as source, replacing(target) as file:
            source.seek(len(self._shape.header))
            for row in rows_in(source, path, self._shape):
                used = self._past is None or self._past.is_used(row.start)
                if used and row.record["status"] != "ok":
                    found = True
                    file.write((as_json({name: row.record.get(name) for name in _OF_ERRORS}) + "\n").encode())
        if not found:
            target.unlink()
        return target if found else None


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file that takes this one's place when it is whole and on the disk."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
