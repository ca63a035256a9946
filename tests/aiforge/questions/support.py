"""Files of questions, written and read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiforge.questions.output import Output
from aiforge.questions.question import Question
from aiforge.questions.reading import NO_CHOICES, Choices, Questions, opened
from aiforge.questions.shape import shape_for

BOM = b"\xef\xbb\xbf"
ODD = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"
OK: Mapping[str, Any] = {
    "status": "ok",
    "error_class": None,
    "model": "offline",
    "input_tokens": 3,
    "output_tokens": 4,
    "cost_usd": "0.000001",
    "latency_s": 0.25,
    "attempts": 1,
    "error_message": None,
}


def put(folder: Path, name: str, content: bytes) -> str:
    file = folder / name
    file.write_bytes(content)
    return str(file)


def read(folder: Path, name: str, content: bytes, choices: Choices = NO_CHOICES) -> list[Question]:
    with opened(put(folder, name, content), choices) as found:
        return list(found)


def answered(question: Question) -> dict[str, Any]:
    """What the tests' service says."""
    return {**OK, "answer": f"re: {question.text}"}


def failed(error: str = "rate_limited") -> dict[str, Any]:
    return {**OK, "answer": None, "status": "error", "error_class": error, "error_message": "no"}


def output(target: Path, found: Questions, **shared: Any) -> Output:
    format_ = "jsonl" if target.suffix == ".jsonl" else "csv"
    return Output(target, shape_for(found, "jsonl" if format_ == "jsonl" else "csv"), found, shared)


def answer(target: Path, found: Questions, limit: int | None = None, **shared: Any) -> list[str | None]:
    """One run that answers at most so many questions; the ids that it asked."""
    asked: list[str | None] = []
    with output(target, found, **shared) as out:
        out.begin()
        for place, question in out.pending():
            if limit is not None and len(asked) == limit:
                break
            out.write(place, question, answered(question))
            asked.append(question.id)
        out.finish()
    return asked
