"""An output that is written as answers come, and continued where an earlier run of it ended.

A killed run leaves whole rows and at most one torn one, which the next run cuts off. The next run adds
its rows below those that are there; only when all are there it writes the file anew in the order of the
input, beside the old one, and puts it in its place. So no answer is ever lost on the way.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, Final, Self

from aiforge.questions.errors import QuestionsError
from aiforge.questions.jsonl import as_json
from aiforge.questions.past import NOT_ASKED, Past, key_of
from aiforge.questions.question import Question
from aiforge.questions.reading import Questions
from aiforge.questions.shape import COLUMNS, Record, Shape, must_be_ours, question_record, rows_in, shape_of

_BUFFER: Final = 64 * 1024
OF_ERRORS: Final = ("index", "id", "question", "status", "error_class", "error_message", "model", "attempts")


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
        self.questions = questions
        self._shared = shared
        self._past = Past()
        self._buffer = bytearray()
        self._start: int | None = None
        """Where the whole rows of a file end that is gone on with."""
        self._end = 0
        self._last_place = -1
        self._is_in_order = True
        self._has_errors = False
        self.count = questions.count
        self.conversations = questions.conversations
        self.kept = self.kept_failed = 0
        """Rows of earlier runs that still answer their question, and how many of them are failures."""
        self.written = self.written_failed = self.not_asked = 0
        """Rows of this run; those of failures; and those of questions that were never asked to the end."""
        self.saved = 0
        """Rows of this run that are in the file."""
        self.unused = 0
        """Answers that are kept in a file of their own, because their question is not in the input."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._past.close()
        if self._path is not None and self._file is not None:
            self._file.close()

    def begin(self, *, retry_failed: bool = False) -> None:
        """Find what is answered already; raises NotOurs for somebody else's file. Nothing is written yet."""
        path = self._path
        if path is not None:
            must_be_ours(errors_file(path), self._shape.format, OF_ERRORS)
            must_be_ours(unused_file(path), "jsonl", COLUMNS)
        there = shape_of(path, self._shape) if path is not None and path.exists() else None
        if path is None or there is None:
            self._put(self._shape.header)
            return
        self._shape = there
        final = self._final_shape.columns
        beside = tuple(name for name in there.columns if name not in final)
        # Somebody's notes, perhaps: what stands there stays.
        self._final_shape = replace(self._final_shape, columns=(*final, *beside))
        self._is_in_order = False
        with path.open("rb") as file:
            file.seek(len(there.header))
            rows = rows_in(file, path, there)
            self._end = self._start = self._past.load(rows, len(there.header), retry_failed=retry_failed)
        self.kept, self.kept_failed = self._past.match(self.questions, self._shared)

    @property
    def is_whole(self) -> bool:
        """Every question has its row."""
        return self.kept + self.written == self.count

    def key(self, question: Question) -> bytes:
        """What makes a question the one that an earlier run has asked."""
        return key_of(question, self._shared)

    def has(self, place: int) -> bool:
        """Whether the question at a place has its row."""
        return self._past.start_of(place) is not None

    def pending(self) -> Iterator[tuple[int, Question]]:
        """The questions that have no row, with their places in the input."""
        for place, question in enumerate(self.questions):
            if not self.has(place):
                yield place, question

    def write(self, place: int, question: Question, answer: Record) -> None:
        """One row; the next flush brings it into the file at the latest."""
        record = {**answer, **question_record(place, question, question.digest(self._shared))}
        self._past.note(place, self._end)
        failed = record["status"] != "ok"
        self._has_errors = self._has_errors or failed
        self._is_in_order = self._is_in_order and place > self._last_place
        self._last_place = place
        self.written_failed += failed
        self.not_asked += failed and record["error_class"] in NOT_ASKED
        self._put(self._shape.row(record, question.extra))
        self.written += 1
        if len(self._buffer) > _BUFFER:
            self.flush()

    def _put(self, row: bytes) -> None:
        self._buffer += row
        self._end += len(row)

    def flush(self) -> None:
        """Whole rows only, in one write as far as the system does that. Raises QuestionsError when somebody
        has cut or lengthened the file meanwhile: behind a hole no row could be read."""
        if self._path is None and self._file is not None:
            self._file.write(self._buffer)
            self._file.flush()
            self._buffer.clear()
        elif self._path is not None:
            with named(self._path):
                if self._file is None:
                    self._file = self._opened(self._path)
                if os.fstat(self._file.fileno()).st_size != self._end - len(self._buffer):
                    raise self._changed(self._path)
                while self._buffer:
                    del self._buffer[: self._file.write(self._buffer)]
        self.saved = self.written

    def _opened(self, path: Path) -> IO[bytes]:
        if self._start is None:
            return path.open("wb", buffering=0)
        file = path.open("r+b", buffering=0)
        file.truncate(self._start)
        file.seek(self._start)
        return file

    def finish(self) -> Path | None:
        """Put the output into the input's order, if it is whole; the file of errors, if there is one.

        One that is not whole stays as it is, for the next run. Raises QuestionsError when somebody else has
        removed or changed it meanwhile.
        """
        self.flush()
        if self._path is None:
            return None
        self._must_be_there(self._path)
        if self.is_whole and not self._is_in_order:
            self._keep_unused(self._path)
            self._rewrite(self._path)
        return self._write_errors(self._path)

    def _must_be_there(self, path: Path) -> None:
        ours = None if self._file is None else os.fstat(self._file.fileno())
        there = path.stat() if path.exists() else None
        if ours and not (there and os.path.samestat(ours, there) and there.st_size == self._end):
            raise self._changed(path)

    def _changed(self, path: Path) -> QuestionsError:
        return QuestionsError(
            f"{path}: was removed or changed meanwhile; the same command writes what is missing"
        )

    def _rewrite(self, path: Path) -> None:
        with path.open("rb") as source, replacing(path) as file:
            file.write(self._final_shape.header)
            for place, question in enumerate(self.questions):
                source.seek(self._past.start_of(place) or 0)
                row = next(rows_in(source, path, self._shape)).record
                fixed = question_record(place, question, question.digest(self._shared))
                self._has_errors = self._has_errors or row["status"] != "ok"
                file.write(self._final_shape.row({**row, **fixed}, question.extra))
        self._shape = self._final_shape

    def _keep_unused(self, path: Path) -> None:
        """Answers that would be gone with the rewriting, because no question of the input is theirs."""
        with path.open("rb") as source:
            source.seek(len(self._shape.header))
            left = (
                row.record
                for row, is_used in self._past.sorted_out(rows_in(source, path, self._shape))
                if row.record["status"] == "ok" and not is_used
            )
            first = next(left, None)
            if first is None:
                return
            target = unused_file(path)
            with replacing(target, like=path) as file:
                if target.exists():
                    with target.open("rb") as before:
                        shutil.copyfileobj(before, file)
                for record in chain([first], left):
                    self.unused += 1
                    file.write((as_json(record) + "\n").encode())

    def _write_errors(self, path: Path) -> Path | None:
        target = errors_file(path)
        if self.is_whole and not self._has_errors:
            target.unlink(missing_ok=True)
            return None
        shape = replace(self._final_shape, columns=OF_ERRORS)
        found = False
        with path.open("rb") as source, replacing(target, like=path) as file:
            file.write(shape.header)
            source.seek(len(self._shape.header))
            for row, is_used in self._past.sorted_out(rows_in(source, path, self._shape)):
                if (is_used or self.is_whole) and row.record["status"] != "ok":
                    found = True
                    file.write(shape.row(row.record, {}))
        if not found:
            target.unlink()
        return target if found else None


def real(path: Path) -> Path:
    """Where a file is that a name leads to; a link that leads in a circle is itself."""
    return Path(os.path.realpath(path))


def errors_file(path: Path) -> Path:
    """Where what failed stands once more, beside an output and in its format."""
    return path.with_name(f"{path.stem}.errors{path.suffix}")


def unused_file(path: Path) -> Path:
    """Where answers are kept that were in an output and belong to no question any more."""
    return path.with_name(f"{path.name}.unused.jsonl")


@contextmanager
def named(path: Path) -> Iterator[None]:
    """A block that writes into this file: its OSError says so."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def replacing(path: Path, like: Path | None = None) -> Iterator[IO[bytes]]:
    """A new file that takes this one's place when it is whole and on the disk.

    A link stays one; who may read the file is kept, or is as of the file that it is to be `like`.
    """
    path = real(path)
    model = path if like is None else like
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file, named(beside):
            if model.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(model.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
