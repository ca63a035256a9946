"""Rows of an output: which columns, and how a row becomes bytes and comes back.

A cell is written exactly as the text is, also one that begins with `=`, `+`, `-` or `@`: an answer
with a quote before it would be another answer. Who opens a file of strangers' texts in a spreadsheet
imports its columns as text.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, BinaryIO, Final

from aiforge.questions.errors import UnclearError
from aiforge.questions.jsonl import as_json
from aiforge.questions.lines import LONGEST_RECORD
from aiforge.questions.question import Question
from aiforge.questions.reading import Format, Questions
from aiforge.questions.table import NO_DELIMITER

COLUMNS: Final = (
    "index",
    "id",
    "question",
    "status",
    "error_class",
    "answer",
    "model",
    "input_tokens",
    "output_tokens",
    "cost_usd",
    "latency_s",
    "attempts",
    "error_message",
    "digest",
)
INPUT: Final = "input"
"""Of a JSONL row: the input's other columns."""
CARRIED: Final = "input_"
"""Before the name of an input's column that an output has, too."""
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of one output. `columns` has those of CSV; `mark` is whether it begins with a BOM."""

    format: Format
    columns: tuple[str, ...] = COLUMNS
    delimiter: str = ","
    mark: bool = False

    @property
    def header(self) -> bytes:
        if self.format == "jsonl":
            return b""
        return (codecs.BOM_UTF8 if self.mark else b"") + self._line(self.columns)

    def row(self, record: Record, extra: Mapping[str, Any]) -> bytes:
        """A row's bytes with its end."""
        if self.format == "jsonl":
            whole = {name: record.get(name) for name in self.columns}
            return (as_json({**whole, INPUT: extra} if extra else whole) + "\n").encode()
        carried = carried_names(tuple(extra))
        values = {**record, **{carried[name]: value for name, value in extra.items()}}
        return self._line([_cell(values.get(name)) for name in self.columns])

    def _line(self, cells: Sequence[Any]) -> bytes:
        out = io.StringIO()
        # With CRLF as the end, a CR alone in a cell is quoted, too.
        csv.writer(out, delimiter=self.delimiter, lineterminator="\r\n").writerow(cells)
        return out.getvalue().encode()


def _cell(value: Any) -> Any:
    return as_json(value) if isinstance(value, list | dict | bool) else value


def carried_names(names: Sequence[str]) -> dict[str, str]:
    """The output's names of the input's other columns."""
    return {name: CARRIED + name if name in COLUMNS or name.startswith(CARRIED) else name for name in names}


def shape_for(questions: Questions, format_: Format | None, *, tabs: bool = False) -> Shape:
    """What an output of these questions looks like: CSV of UTF-8 with `tabs` or the input's delimiter, and
    with a byte order mark where the input had one or was in an encoding that cannot hold every answer."""
    format_ = format_ or questions.format
    if format_ == "jsonl":
        return Shape("jsonl")
    layout = questions.table
    delimiter = "\t" if tabs else layout.delimiter if layout and layout.delimiter != NO_DELIMITER else ","
    columns = (*COLUMNS, *carried_names(questions.extra).values())
    return Shape("csv", columns, delimiter, mark=questions.file.encoding.codec not in {"utf-8", "ascii"})


def question_record(index: int, question: Question, digest: str) -> dict[str, Any]:
    """The part of a row that the question says."""
    return {"index": index, "id": question.id, "question": question.text, "digest": digest}


class NotOurs(UnclearError):
    """A file that this command has not written must not be continued, nor overwritten."""

    def __init__(self, path: Path, line: int) -> None:
        super().__init__(
            f"{path}: is there already, and line {line} is no row of answers; name another file with -o"
        )


@dataclass(frozen=True, slots=True)
class Written:
    """A whole row that is in an output already, and where it begins and ends."""

    start: int
    end: int
    record: Record


def shape_of(path: Path, wanted: Shape) -> Shape | None:
    """The shape of an output that is there; None where not even its header is whole."""
    if wanted.format == "jsonl":
        return wanted
    with path.open("rb") as file:
        first = file.readline(LONGEST_RECORD)
    if wanted.header.startswith(first) and first != wanted.header:
        return None
    found = _header(first)
    if found.columns[: len(COLUMNS)] != COLUMNS:
        raise NotOurs(path, 1)
    return found


def must_be_ours(path: Path, format_: Format, columns: tuple[str, ...]) -> None:
    """Raises NotOurs for a file that is there and whose columns do not begin with these."""
    if not path.exists():
        return
    with path.open("rb") as file:
        first = file.readline(LONGEST_RECORD)
    try:
        found = _header(first).columns if format_ == "csv" else tuple(json.loads(first))
    except (ValueError, TypeError):
        found = ()
    if found[: len(columns)] != columns:
        raise NotOurs(path, 1)


def _header(first: bytes) -> Shape:
    """The shape of CSV that begins with this line, without columns where it is no header of ours."""
    text = first.decode("utf-8", "replace")
    mark = text.startswith("\ufeff")
    text = text.removeprefix("\ufeff")
    delimiter = text[len(COLUMNS[0]) : len(COLUMNS[0]) + 1]
    columns: tuple[str, ...] = ()
    if text.endswith("\n") and delimiter.strip('"\r\n'):
        with suppress(csv.Error):
            columns = tuple(next(csv.reader([text], delimiter=delimiter)))
    return Shape("csv", columns, delimiter, mark)


def rows_in(file: BinaryIO, path: Path, shape: Shape) -> Iterator[Written]:
    """The whole rows of an output from where its file stands, without blank lines; what is torn at the end
    is none.

    Raises NotOurs for anything else.
    """
    return (_json_rows if shape.format == "jsonl" else _csv_rows)(file, path, shape)


def _json_rows(file: BinaryIO, path: Path, shape: Shape) -> Iterator[Written]:
    end = file.tell()
    for number, raw in enumerate(file, start=1):
        if not raw.endswith(b"\n"):
            return
        if not raw.strip():
            end += len(raw)
            continue
        try:
            record = json.loads(raw, parse_float=Decimal)
        except (ValueError, InvalidOperation):
            raise NotOurs(path, number) from None
        if not isinstance(record, dict) or not record.keys() >= {"status", "digest"}:
            raise NotOurs(path, number)
        yield Written(end, end + len(raw), record)
        end += len(raw)


def _csv_rows(file: BinaryIO, path: Path, shape: Shape) -> Iterator[Written]:
    end = file.tell()
    read = end

    def whole_lines() -> Iterator[str]:
        nonlocal read
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            read += len(raw)
            yield raw.decode()

    csv.field_size_limit(2 * LONGEST_RECORD)
    reader = csv.reader(whole_lines(), delimiter=shape.delimiter, strict=True)
    try:
        for cells in reader:
            if not cells:
                end = read
                continue
            if len(cells) != len(shape.columns):
                raise NotOurs(path, reader.line_num + 1)
            yield Written(end, read, dict(zip(shape.columns, cells, strict=True)))
            end = read
    except (csv.Error, UnicodeDecodeError) as error:
        if "unexpected end" not in str(error):
            raise NotOurs(path, reader.line_num + 1) from None
