"""Reading the questions of a batch from JSONL or CSV, all of them checked before any is sent.

Only LF and CRLF end a line: U+2028, U+2029 and U+0085 are text, so nothing here may split lines
the way `str` does.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from aiforge.cli.errors import CommandError, UsageError
from aiforge.core.content import ContentError, check_content
from aiforge.core.texts import encodable

Format = Literal["jsonl", "csv"]
Row = Mapping[str, Any]

QUESTION_COLUMNS: Final = ("question", "prompt", "query", "q", "text", "input", "message")
ID_COLUMNS: Final = ("id", "custom_id")
SUFFIXES: Final[Mapping[str, Format]] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
LONGEST_CELL: Final = 16 * 1024 * 1024
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Question:
    """One input row: where it stands, its own id and what is asked (text or content parts)."""

    line: int
    id: str | None
    text: str | list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Questions:
    """All rows of one input, and the column and format they came from."""

    rows: Sequence[Question]
    column: str
    format: Format


class BadRow(Exception):
    """What is wrong with one line; collected, never shown alone."""


def format_of(name: str) -> Format | None:
    """The format that a file's name promises, None for stdin and stdout; raises UsageError."""
    if name == "-":
        return None
    try:
        return SUFFIXES[Path(name).suffix.lower()]
    except KeyError:
        raise UsageError(f"{name}: name it .jsonl or .csv, so that its format is known") from None


def read(name: str, column: str | None, id_column: str | None) -> Questions:
    """All questions of a file, or of stdin for `-`; raises CommandError naming every bad line."""
    format_ = format_of(name)
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{name}: no such file") from None
    raw = raw.removeprefix(_BOM)
    if format_ is None:
        format_ = "jsonl" if raw.lstrip()[:1] == b"{" else "csv"
    problems: list[tuple[int, str]] = []
    rows = list((_read_jsonl if format_ == "jsonl" else _read_csv)(raw, problems))
    if not rows and not problems:
        raise CommandError(f"{name}: there is no question in it")
    columns = _columns(rows)
    if column is None:
        column = _guess(columns, name) if rows else ""
    _must_exist(column, columns, "--column", rows)
    if id_column is None:
        id_column = next((known for known in ID_COLUMNS if known in columns and known != column), None)
    else:
        _must_exist(id_column, columns, "--id-column", rows)
    found = list(_check(rows, column, id_column, problems))
    if problems:
        raise _bad(name, problems)
    return Questions(found, column, format_)


def _read_jsonl(raw: bytes, problems: list[tuple[int, str]]) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode(), object_pairs_hook=_object, parse_constant=_no_number)
        except UnicodeDecodeError:
            problems.append((number, "is not UTF-8"))
        except BadRow as error:
            problems.append((number, str(error)))
        except (ValueError, RecursionError) as error:
            problems.append((number, f"is not JSON: {error}"))
        else:
            if isinstance(value, dict):
                yield number, value
            else:
                problems.append((number, "is not a JSON object"))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadRow(f"has {_twice([name for name, _ in pairs])!r} twice")
    return found


def _twice(names: Sequence[str]) -> str:
    return next(name for name in names if names.count(name) > 1)


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")


def _read_csv(raw: bytes, problems: list[tuple[int, str]]) -> Iterator[tuple[int, Row]]:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        problems.append((raw.count(b"\n", 0, error.start) + 1, "is not UTF-8"))
        return
    csv.field_size_limit(LONGEST_CELL)
    # Lines keep their ends: the reader joins those inside quotes again, as they were.
    lines = [f"{line}\n" for line in text.split("\n")]
    reader = csv.reader(lines, delimiter=_delimiter(lines[0]), strict=True)
    header: list[str] | None = None
    start = 1
    try:
        for cells in reader:
            if not cells:
                pass
            elif header is None:
                header = [cell.strip() for cell in cells]
                if len(set(header)) < len(header):
                    problems.append((start, f"has the column {_twice(header)!r} twice"))
                    return
            elif len(cells) != len(header):
                problems.append((start, f"has {len(cells)} cells where the header has {len(header)}"))
            else:
                yield start, dict(zip(header, cells, strict=True))
            start = reader.line_num + 1
    except csv.Error as error:
        problems.append((start, f"is not CSV: {str(error).partition(' - ')[0]}"))


def _delimiter(header: str) -> str:
    """A header without a comma may be a spreadsheet's, with semicolons or tabs."""
    return next((mark for mark in ",;\t" if mark in header), ",")


def _columns(rows: Sequence[tuple[int, Row]]) -> list[str]:
    return list(dict.fromkeys(name for _, row in rows for name in row))


def _guess(columns: Sequence[str], name: str) -> str:
    found = [column for column in columns if column.strip().lower() in QUESTION_COLUMNS]
    if len(found) == 1:
        return found[0]
    if not found and len(columns) == 1:
        return columns[0]
    which = "several columns could hold" if found else "no column is known to hold"
    raise UsageError(f"{name}: {which} the question; name one with --column: {', '.join(columns)}")


def _must_exist(column: str, columns: Sequence[str], option: str, rows: Sequence[object]) -> None:
    if rows and column not in columns:
        raise UsageError(f"{option}: there is no column {column!r}; there are: {', '.join(columns)}")


def _check(
    rows: Sequence[tuple[int, Row]], column: str, id_column: str | None, problems: list[tuple[int, str]]
) -> Iterator[Question]:
    seen: dict[str, int] = {}
    for line, row in rows:
        try:
            question = Question(line, _id(row, id_column, seen), _text(row, column))
        except BadRow as error:
            problems.append((line, str(error)))
            continue
        if question.id is not None:
            seen[question.id] = line
        yield question


def _text(row: Row, column: str) -> str | list[dict[str, Any]]:
    if column not in row:
        raise BadRow(f"has no {column!r}")
    text: str | list[dict[str, Any]] = row[column]
    try:
        check_content(text)
    except ContentError as error:
        raise BadRow(f"{column!r}{error.where} {error}") from None
    return text


def _id(row: Row, id_column: str | None, seen: Mapping[str, int]) -> str | None:
    value = row.get(id_column) if id_column is not None else None
    if value is None or value == "":
        return None
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise BadRow(f"{id_column!r} must be text or a whole number")
    if encodable(str(value)) != str(value):
        raise BadRow(f"{id_column!r} holds a lone surrogate, which is no character")
    if str(value) in seen:
        raise BadRow(f"{id_column!r} {value!r} stands in line {seen[str(value)]} already")
    return str(value)


def _bad(name: str, problems: list[tuple[int, str]]) -> CommandError:
    problems.sort()
    lines = tuple(f"line {line} {what}" for line, what in problems)
    count = "1 line is" if len(problems) == 1 else f"{len(problems)} lines are"
    return CommandError(f"{name}: {count} wrong, so nothing was sent", lines)
