"""Writing the answers of a batch as JSONL or CSV, one row for each question and in its order."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final

from aiforge.cli.output import as_json
from aiforge.cli.questions import Format, Question
from aiforge.client import Row

COLUMNS: Final = (
    "index",
    "id",
    "question",
    "status",
    "error_code",
    "answer",
    "model",
    "input_tokens",
    "output_tokens",
    "cost_usd",
    "latency_ms",
    "attempts",
)


class Answers:
    """Rows go out as they come, so what is written so far can be read at any time."""

    def __init__(self, out: IO[str], format_: Format) -> None:
        self._out = out
        self._csv = csv.writer(out, lineterminator="\n") if format_ == "csv" else None
        if self._csv:
            self._csv.writerow(COLUMNS)
        self.written = 0

    def write(self, index: int, question: Question, row: Row) -> None:
        """`index` counts over the whole input, which may be several batches."""
        record = _record(index, question, row)
        if self._csv:
            self._csv.writerow([_cell(record[name]) for name in COLUMNS])
        else:
            self._out.write(as_json(record) + "\n")
        self.written += 1

    def flush(self) -> None:
        self._out.flush()


@contextmanager
def writing(name: str, format_: Format) -> Iterator[Answers]:
    """Answers into a file, or into stdout for `-`."""
    with ExitStack() as stack:
        out: IO[str] = sys.stdout
        if name != "-":
            out = stack.enter_context(Path(name).open("w", encoding="utf-8", newline=""))
        answers = Answers(out, format_)
        yield answers
        answers.flush()


def _record(index: int, question: Question, row: Row) -> Mapping[str, Any]:
    usage = row.usage
    return {
        "index": index,
        "id": question.id,
        "question": question.text,
        "status": row.status,
        "error_code": row.error.code if row.error else None,
        "answer": row.answer,
        "model": row.model,
        "input_tokens": usage.input_tokens if usage else None,
        "output_tokens": usage.output_tokens if usage else None,
        "cost_usd": None if row.cost is None else f"{row.cost:f}",
        "latency_ms": None if row.latency_ms is None else round(row.latency_ms, 1),
        "attempts": row.attempts,
    }


def _cell(value: Any) -> Any:
    return as_json(value) if isinstance(value, list) else value
