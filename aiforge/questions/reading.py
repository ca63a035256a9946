"""A file of questions: opened and checked whole once, then read as often as it is needed."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from aiforge.questions import jsonl, table, template
from aiforge.questions.columns import conversation_column, id_column, question_column, shown
from aiforge.questions.encoding import (
    LATIN_9,
    PIECE,
    WINDOWS_1252,
    Encoding,
    detect,
    must_be_text_file,
    named,
)
from aiforge.questions.errors import BadLinesError, BadRow, Problems, QuestionsError, UnclearError
from aiforge.questions.ids import Ids
from aiforge.questions.lines import Changed, TextFile, stamp_of
from aiforge.questions.question import OPTIONS, Form, Question, from_row, is_chat
from aiforge.questions.table import Layout, Wanted

Format = Literal["jsonl", "csv"]
SUFFIXES: Final[Mapping[str, Format]] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "csv",
}  # fmt: skip
MOST_EXTRA: Final = 256
"""How many different names the other columns of one file can have."""
_GUESSED_ROWS: Final = 1000
_JSON: Final = re.compile(r"""\s*(?:\[\s*)?\{\s*(?:"|\}|\Z)|\s*\[\s*(?:"|\Z)""")


@dataclass(frozen=True, slots=True)
class Choices:
    """What the caller decides about a file; None leaves it to the file."""

    column: str | None = None
    id_column: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    header: bool = True
    prompt_template: str | None = None
    conversation_column: str | None = None
    tools: frozenset[str] | None = field(default=None, compare=False)
    """Names of the tools that lines can ask for, None where that is not known here."""


NO_CHOICES: Final = Choices()


@dataclass(frozen=True, slots=True)
class Questions:
    """A checked file. Each iteration reads it anew, so none of its rows is held."""

    name: str
    format: Format
    file: TextFile
    form: Form
    table: Layout | None
    count: int
    extra: tuple[str, ...]
    """Names of the other columns, in the order in which they appear."""
    chats: bool = False
    """Some lines are chat requests in OpenAI's form."""
    conversations: bool = False
    """Some questions go on with conversations."""
    note: str = ""
    """How the file was read, for people."""

    def __iter__(self) -> Iterator[Question]:
        """Raises QuestionsError when the file is not the one that was checked."""
        problems = Problems()
        try:
            if stamp_of(self.file.path.stat()) != self.file.stamp:
                raise Changed
            for line, row in _rows(self.file, self.table, problems):
                yield from_row(line, row, self.form)
        except Changed:
            raise QuestionsError(
                f"{self.name}: has changed since it was checked; the same command goes on with that"
            ) from None
        if problems.count:
            raise problems.error(self.name)

    @property
    def column(self) -> str:
        return self.form.column


def format_of(name: str) -> Format | None:
    """The format that a file's name promises, None for stdin and stdout; raises UnclearError."""
    if name == "-":
        return None
    try:
        return SUFFIXES[Path(name).suffix.lower()]
    except KeyError:
        raise UnclearError(f"{name}: name it .jsonl, .csv or .tsv, so that its format is known") from None


def has_tabs(name: str) -> bool:
    """Whether a file's name promises tabs between cells."""
    return name.lower().endswith(".tsv")


@contextmanager
def opened(name: str, choices: Choices = NO_CHOICES) -> Iterator[Questions]:
    """A file of questions, or stdin for `-`, checked to its last line.

    Raises UnclearError, or BadLinesError with every bad line, before anything can be done with it.
    """
    with ExitStack() as stack:
        path = Path(name) if name != "-" else stack.enter_context(_spooled())
        if not path.exists():
            raise UnclearError(f"{name}: no such file")
        if not path.is_file():
            raise UnclearError(f"{name}: is no file; what comes from elsewhere is read from stdin with -")
        shown_name = "stdin" if name == "-" else name
        must_be_text_file(path, shown_name)
        yield _checked(shown_name, path, format_of(name), choices)


@contextmanager
def _spooled() -> Iterator[Path]:
    """Stdin in a file, because it is read more than once. Raises UnclearError where there is none."""
    if sys.stdin is None:
        raise UnclearError("stdin: is closed")
    with tempfile.NamedTemporaryFile(prefix="aiforge-") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, PIECE)
        file.flush()
        yield Path(file.name)


def _checked(name: str, path: Path, format_: Format | None, choices: Choices) -> Questions:
    stamp = stamp_of(path.stat())
    encoding = detect(path, name) if choices.encoding is None else named(choices.encoding, path)
    file = TextFile(path, encoding)
    if format_ is None:
        format_ = "jsonl" if _begins_as_json(file) else "csv"
    elif format_ == "csv" and _begins_as_json(file):
        raise UnclearError(f"{name}: is JSON; name it .jsonl")
    if format_ == "jsonl":
        if choices.delimiter is not None or not choices.header:
            raise UnclearError(f"{name}: --delimiter and --no-header are for CSV")
        layout = None
        jsonl.must_be_lines(file, name)
        columns, beside = _json_columns(file)
    else:
        delimiter = "\t" if choices.delimiter is None and has_tabs(name) else choices.delimiter
        layout = table.layout(file, Wanted(choices.column, delimiter, choices.header), name)
        columns, beside = (list(layout.columns) if layout else []), []
    if not columns and not beside and (choices.column is None or layout is None):
        _refuse(name, file, layout, format_)
    form = _form(columns, choices, name, format_, beside)
    return _check(Questions(name, format_, file, form, layout, 0, (), bool(beside)), stamp, encoding)


def _begins_as_json(file: TextFile) -> bool:
    first = next((line for _, line in file.lines() if line.strip()), "")
    return _JSON.match(first) is not None


def _json_columns(file: TextFile) -> tuple[list[str], list[str]]:
    """The names in the first lines, and in those that are chat requests."""
    names: dict[str, None] = {}
    beside: dict[str, None] = {}
    for _, row in islice(jsonl.rows(file, Problems()), _GUESSED_ROWS):
        (beside if is_chat(row) else names).update(dict.fromkeys(row))
    return list(names), list(beside)


def _refuse(name: str, file: TextFile, layout: Layout | None, format_: Format) -> None:
    problems = Problems()
    for _ in _rows(file, layout, problems) if format_ == "jsonl" or layout else ():
        pass
    raise problems.error(name) if problems.count else BadLinesError(f"{name}: there is no question in it")


def _form(columns: list[str], choices: Choices, name: str, format_: Format, beside: list[str]) -> Form:
    """`beside` are the names in chat requests, if there are some."""
    plain = [column for column in columns if column not in OPTIONS] if format_ == "jsonl" else columns
    if not plain and beside and choices.column is None:
        if choices.prompt_template is not None:
            raise UnclearError(
                "--prompt-template: these lines are chat requests, which have a prompt already"
            )
        within = conversation_column(beside, choices.conversation_column, ())
        return Form("question", choices.id_column, None, True, within, choices.tools)
    question = question_column(plain, choices.column, name)
    id_ = id_column(columns, choices.id_column, question)
    around = choices.prompt_template
    found = None if around is None else template.parsed(around, columns, question)
    within = conversation_column([*columns, *beside], choices.conversation_column, (question, id_))
    return Form(question, id_, found, format_ == "jsonl", within, choices.tools)


def _rows(file: TextFile, layout: Layout | None, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    return jsonl.rows(file, problems) if layout is None else table.rows(file, layout, problems)


def _check(questions: Questions, stamp: tuple[int, int], encoding: Encoding) -> Questions:
    problems = Problems()
    extra: dict[str, None] = {}
    count, conversations = 0, False
    with Ids() as ids:
        for line, row in _rows(questions.file, questions.table, problems):
            count += 1
            try:
                question = from_row(line, row, questions.form)
            except BadRow as error:
                problems.add(line, str(error))
            else:
                conversations = conversations or question.conversation is not None
                if question.id is not None:
                    ids.add(question.id, line)
                extra.update(dict.fromkeys(question.extra))
                if len(extra) > MOST_EXTRA:
                    raise UnclearError(f"{questions.name}: has more than {MOST_EXTRA} different columns")
        name = questions.form.id_column or "custom_id"
        for id_, line, first in ids.repeated():
            problems.add(line, f"{name!r} {id_!r} stands in line {first} already")
    if problems.count:
        raise problems.error(questions.name)
    if not count:
        raise BadLinesError(f"{questions.name}: there is no question in it")
    file = replace(questions.file, stamp=stamp)
    found = replace(questions, file=file, count=count, extra=tuple(extra), conversations=conversations)
    return replace(found, note=_note(found, encoding, problems))


def _note(questions: Questions, encoding: Encoding, passed: Problems) -> str:
    count, extra = questions.count, questions.extra
    told = [f"{count} question{'s' * (count > 1)}", encoding.label]
    if encoding in (WINDOWS_1252, LATIN_9):
        told[-1] += " by its bytes (--encoding decides otherwise)"
    layout, form = questions.table, questions.form
    if layout is not None:
        told.append(table.DELIMITERS.get(layout.delimiter, "one column"))
        if layout.header_line is None:
            told.append("no header")
        if layout.skipped:
            told.append(f"{layout.skipped} row{'s' * (layout.skipped > 1)} above skipped")
        for number, what in ((passed.comments, "comment"), (passed.headers, "repeated header")):
            if number:
                told.append(f"{number} {what}{'s' * (number > 1)} skipped")
    if not questions.chats:
        told.append(f"question from {form.column!r}")
    if questions.chats:
        told.append("chat requests in OpenAI's form are asked as questions")
    if form.id_column is not None:
        told.append(f"id from {form.id_column!r}")
    if questions.conversations:
        told.append(f"conversation from {form.conversation_column!r}")
    if extra:
        told.append(f"carried along: {shown(extra)}")
    return f"{questions.name}: {'; '.join(told)}"
