"""CSV as people have it: which delimiter, where the header is, and every row below it."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from aiforge.questions.columns import is_question, plain
from aiforge.questions.errors import BadRow, Problems, UnclearError
from aiforge.questions.jsonl import twice
from aiforge.questions.lines import LONGEST_RECORD, MOST_LINES, TextFile, must_be_text

DELIMITERS: Final = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
NO_DELIMITER: Final = "\0"
"""Of a single column, whose commas are text; a NUL is in no row that is accepted."""
_HEAD_LINES: Final = 200
_HEAD_CHARACTERS: Final = 256 * 1024
_COMMENT: Final = re.compile(r"#(?:[#\s]|\Z)")
"""Below the header, where `#12` and `#metoo` may be an id and a question; so may `# x` in quotes."""
_RULE: Final = re.compile(r"\s*:?-{3,}:?\s*")
_SEPARATOR_LINE: Final = re.compile(r'"?sep=(.)"?\r?\n?', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table is read: its columns, and the number of the first line below its header."""

    delimiter: str
    columns: tuple[str, ...]
    first_line: int
    header_line: int | None
    skipped: int = 0
    """Title and comment rows above the header."""
    unnamed: frozenset[str] = frozenset()
    """Columns that have no name in the file: where they are blank, they are none."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller has decided; the rest is guessed."""

    column: str | None = None
    delimiter: str | None = None
    header: bool = True


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    next_line: int
    cells: list[str]

    @property
    def filled(self) -> int:
        return sum(1 for cell in self.cells if cell.strip())

    @property
    def is_comment(self) -> bool:
        return self.cells[0].lstrip().startswith("#")


@dataclass(frozen=True, slots=True)
class _Reading:
    """The first rows under one delimiter, and which of them is the header, if that is known."""

    delimiter: str
    rows: list[_Row]
    header: int | None
    broken: tuple[int, str] | None = None
    """The first line that is no CSV, and why."""

    @property
    def width(self) -> int:
        return self.rows[self.header].filled if self.header is not None else 0

    @property
    def agreeing(self) -> int:
        below = self.rows[(self.header or 0) + 1 :]
        wide = len(self.rows[self.header or 0].cells)
        return sum(1 for row in below if len(row.cells) == wide)


def layout(file: TextFile, wanted: Wanted, name: str) -> Layout | None:
    """The one obvious layout, None for a file without rows; raises UnclearError."""
    lines, first = _head(file)
    separator = _SEPARATOR_LINE.fullmatch(lines[0]) if lines else None
    if separator:
        lines, first = lines[1:], 2
    delimiter = wanted.delimiter or (separator.group(1) if separator else None)
    readings = [
        _read(lines, first, each, wanted)
        for each in ([delimiter] if delimiter else [*DELIMITERS, NO_DELIMITER])
    ]
    readable = [each for each in readings if each.rows]
    chosen = None
    if readable:
        chosen = readable[0] if delimiter else _choose(readable, name)
    _must_not_begin_broken(chosen or readings[0], name)
    return _layout(chosen, wanted, name) if chosen else None


def _must_not_begin_broken(reading: _Reading, name: str) -> None:
    """What stands in place of a header that cannot be read is none."""
    first = reading.rows[0].line if reading.rows else None
    if reading.broken and reading.header is None and (first is None or first > reading.broken[0]):
        problems = Problems()
        problems.add(*reading.broken)
        raise problems.error(name)


def _head(file: TextFile) -> tuple[list[str], int]:
    lines: list[str] = []
    size = 0
    for _, line in islice(file.lines(), _HEAD_LINES):
        lines.append(line.removeprefix("\ufeff"))
        size += len(line)
        if size > _HEAD_CHARACTERS:
            break
    return lines, 1


def _read(lines: Sequence[str], first: int, delimiter: str, wanted: Wanted) -> _Reading:
    reader = csv.reader(iter(lines), delimiter=delimiter)
    rows: list[_Row] = []
    blanks: set[int] = set()
    broken: tuple[int, str] | None = None
    start = first
    csv.field_size_limit(LONGEST_RECORD)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            cells = []
            broken = broken or (start, _csv_problem(error))
        row = _Row(start, first + reader.line_num, cells)
        if row.filled:
            rows.append(row)
        else:
            blanks.add(len(rows))
        start = row.next_line
    header = _header(rows, blanks, wanted) if wanted.header else None
    return _Reading(delimiter, rows, header, broken)


def _header(rows: Sequence[_Row], blanks: set[int], wanted: Wanted) -> int | None:
    """The first row that names a column of questions, below nothing but titles and comments.

    One above a fuller row that names a column, too, is a title over several columns.
    """
    named = [any(_is_named(cell, wanted.column) for cell in row.cells) for row in rows]
    for index, row in enumerate(rows):
        if named[index] and not (any(named[index + 1 : index + 2]) and row.filled < rows[index + 1].filled):
            above = [other for other in rows[:index] if not other.is_comment]
            apart = (
                index in blanks and (row.filled > 1 or len(above) == 1) and not any(map(_is_said, row.cells))
            )
            return index if apart or all(other.filled < row.filled for other in above) else None
    return None


def _is_named(cell: str, column: str | None) -> bool:
    return is_question(cell) if column is None else plain(cell) == plain(column)


def _choose(readings: Sequence[_Reading], name: str) -> _Reading:
    known = [each for each in readings if each.width > 1]
    if known:
        best = max(each.agreeing for each in known)
        known = [each for each in known if each.agreeing == best]
        if len(known) > 1:
            marks = " and ".join(DELIMITERS[each.delimiter] for each in known)
            raise UnclearError(f"{name}: could be read with {marks}; say which with --delimiter")
        return known[0]
    if readings[-1].header is not None:
        return readings[-1]
    even = [each for each in readings[:-1] if _is_even(each)]
    return max(even, key=lambda each: len(each.rows[0].cells), default=readings[-1])


def _is_even(reading: _Reading) -> bool:
    """Several columns in every row, in all as many; commas that all have a space behind them are prose."""
    rows = [row.cells for row in reading.rows if not row.is_comment]
    prose = all(cell[:1].isspace() for cells in rows for cell in cells[1:])
    return len({len(cells) for cells in rows}) == 1 and len(rows[0]) > 1 and not prose


def _layout(reading: _Reading, wanted: Wanted, name: str) -> Layout:
    rows, index = reading.rows, reading.header
    if index is None:
        index = next((number for number, row in enumerate(rows) if not row.is_comment), 0)
        if not wanted.header or (wanted.column is None and _is_bare(rows[index:], name)):
            columns = tuple(str(number + 1) for number in range(len(rows[index].cells)))
            return Layout(reading.delimiter, columns, rows[index].line, None, index)
    row = rows[index]
    columns = _names(row, name)
    unnamed = frozenset(column for column, cell in zip(columns, row.cells, strict=True) if not cell.strip())
    return Layout(reading.delimiter, columns, row.next_line, row.line, index, unnamed)


def _names(row: _Row, name: str) -> tuple[str, ...]:
    columns = _named(row.cells)
    if len(set(columns)) < len(columns):
        problems = Problems()
        problems.add(row.line, f"has the column {twice(columns)!r} twice")
        raise problems.error(name)
    return tuple(columns)


def _named(cells: Sequence[str]) -> list[str]:
    return [cell.strip() or f"column {number}" for number, cell in enumerate(cells, start=1)]


def _is_bare(rows: Sequence[_Row], name: str) -> bool:
    """Whether a table with no known name in it is a list of questions without a header."""
    if len(rows[0].cells) > 1:
        return False
    first, *others = (row.cells[0] for row in rows)
    if _is_said(first):
        return True
    if sum(map(_is_said, others)) * 2 > len(others):
        return False
    raise UnclearError(
        f"{name}: {first.strip()[:80]!r} could be the name of the only column or the first question; "
        "say --column with that name, or --no-header"
    )


def _is_said(cell: str) -> bool:
    """Whether this is somebody's sentence and not a column's name."""
    text = cell.strip()
    return "?" in text or text.endswith((".", "!", ":")) or len(text.split()) > 3


def rows(file: TextFile, table: Layout, problems: Problems) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and rows below the header; comments, rows without any text and headers that stand there
    again, as where files were put together, are left out."""
    below = _Below(file, table.first_line, problems)
    reader = csv.reader(below, delimiter=table.delimiter, strict=True)
    csv.field_size_limit(2 * LONGEST_RECORD)
    is_markdown = False
    while True:
        below.begin()
        try:
            cells = next(reader)
            must_be_text("".join(below.record), file.encoding)
            if _is_rule(cells):
                problems.comments += 1
                is_markdown = True
            elif len(cells) > 1 and table.header_line is not None and _named(cells) == list(table.columns):
                problems.headers += 1
            elif any(cell.strip() for cell in cells):
                _must_fit(cells, table, below.record)
                yield below.start, _row(cells, table, is_padded=is_markdown)
        except StopIteration:
            return
        except csv.Error as error:
            problems.add(below.start, _csv_problem(error))
        except BadRow as error:
            problems.add(below.start, str(error))
            if below.overflowed:
                return


def _row(cells: Sequence[str], table: Layout, *, is_padded: bool) -> dict[str, str]:
    """`is_padded` is a table of Markdown, where spaces around a cell are no part of it."""
    whole = zip(table.columns, map(str.strip, cells) if is_padded else cells, strict=False)
    return {column: cell for column, cell in whole if column not in table.unnamed or cell.strip()}


def _is_rule(cells: Sequence[str]) -> bool:
    """Whether this is the line below the header of a table in Markdown."""
    return (
        len(cells) > 2
        and all(map(_RULE.fullmatch, cells[1:-1]))
        and not any(map(str.strip, (cells[0], cells[-1])))
    )


class _Below:
    """The lines from a certain one on, and those that the record being read is made of."""

    def __init__(self, file: TextFile, first_line: int, problems: Problems) -> None:
        self._lines = file.lines()
        self._problems = problems
        self._first_line = first_line
        self._size = 0
        self.start = first_line
        self.record: list[str] = []
        self.overflowed = False

    def begin(self) -> None:
        self.record.clear()
        self._size = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        number, line = next(self._lines)
        while number < self._first_line or (not self.record and _COMMENT.match(line)):
            self._problems.comments += number >= self._first_line
            number, line = next(self._lines)
        if not self.record:
            self.start = number
            line = line.removeprefix("\ufeff")
        self.record.append(line)
        self._size += len(line)
        if self._size > LONGEST_RECORD or len(self.record) > MOST_LINES:
            self.overflowed = len(self.record) > 1
            raise BadRow(
                f"is longer than {LONGEST_RECORD} characters or {MOST_LINES} lines; is a quote missing?"
            )
        return line.replace("\0", "\ufffd") if "\0" in line else line


def _must_fit(cells: Sequence[str], table: Layout, record: Iterable[str]) -> None:
    wide = len(table.columns)
    if len(cells) < wide or any(cell.strip() for cell in cells[wide:]):
        have = f"{len(cells)} cell{'s' * (len(cells) != 1)}"
        raise BadRow(f"has {have} where the header has {wide}")
    if f'{table.delimiter} "' in "".join(record) and any(
        re.match(r'\s+".*"\s*\Z', cell, re.DOTALL) for cell in cells
    ):
        raise BadRow("has a space before a quote, so the cell could be read in two ways")


def _csv_problem(error: csv.Error) -> str:
    text = str(error).partition(" - ")[0]
    if text.startswith("new-line character"):
        text = "a CR without LF stands outside quotes"
    return f"is not CSV: {text}"
