"""A prompt around each question: `"Answer as a clerk: {question} (order {order id})"`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from string import Formatter
from typing import Any

from aiforge.questions.columns import existing
from aiforge.questions.errors import BadRow, UnclearError


@dataclass(frozen=True, slots=True)
class Template:
    """Pairs of fixed text and the column that follows it; None after the last text."""

    parts: tuple[tuple[str, str | None], ...]

    @property
    def columns(self) -> list[str]:
        return [column for _, column in self.parts if column is not None]

    def fill(self, row: Mapping[str, Any]) -> str:
        return "".join(
            text + (_word(row, column) if column is not None else "") for text, column in self.parts
        )


def parsed(text: str, columns: Sequence[str], question: str) -> Template:
    """A template over these columns, `{question}` being the column of questions unless another is named
    so; raises UnclearError naming what is wrong."""
    try:
        found = list(Formatter().parse(text))
    except ValueError as error:
        raise UnclearError(f"--prompt-template: {error}; {{{{ and }}}} stand for braces") from None
    parts: list[tuple[str, str | None]] = []
    for fixed, column, format_, conversion in found:
        if format_ or conversion:
            raise UnclearError(f"--prompt-template: {{{column}…}} is only a column's name, without ! and :")
        if column == "question" and column not in columns:
            parts.append((fixed, question))
        else:
            parts.append((fixed, None if column is None else existing(columns, column, "--prompt-template")))
    if not any(column for _, column in parts):
        raise UnclearError("--prompt-template: names no column, such as {question}")
    return Template(tuple(parts))


def _word(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if value is None:
        raise BadRow(f"has no {column!r}, which the prompt template asks for")
    if isinstance(value, str | Decimal):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=float)
