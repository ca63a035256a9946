"""Where the answers of a batch go: a file beside the questions, or stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, Any, cast

from aiforge.cli.errors import UsageError
from aiforge.client import Row
from aiforge.client.options import Options
from aiforge.questions.errors import UnclearError
from aiforge.questions.output import Output
from aiforge.questions.reading import Questions, format_of, has_tabs
from aiforge.questions.shape import shape_for


def output(name: str, questions: Questions, options: Options) -> Output:
    """The output of that name, stdout for `-`; nothing is written yet. Raises UnclearError."""
    shape = shape_for(questions, format_of(name), tabs=has_tabs(name))
    return Output(stdout() if name == "-" else Path(name), shape, questions, cast(dict[str, Any], options))


def must_have_format(target: str) -> None:
    """Raises UsageError for a name that promises no format."""
    try:
        format_of(target)
    except UnclearError as error:
        raise UsageError(str(error)) from None


def stdout() -> IO[bytes]:
    """Where rows go that have no file; raises UsageError where it is closed."""
    if sys.stdout is None:
        raise UsageError("stdout is closed; name a file with -o")
    return sys.stdout.buffer


def record(row: Row) -> dict[str, Any]:
    """What an output's row says about an answer."""
    usage = row.usage
    return {
        "status": row.status,
        "error_class": row.error.code if row.error else None,
        "answer": row.answer if row.response is None else _text(row.response.get("body")),
        "model": row.model,
        "input_tokens": usage.input_tokens if usage else None,
        "output_tokens": usage.output_tokens if usage else None,
        "cost_usd": None if row.cost is None else f"{row.cost:f}",
        "latency_s": None if row.latency_ms is None else round(row.latency_ms / 1000, 4),
        "attempts": row.attempts,
        "error_message": row.error.message if row.error else None,
    }


def _text(body: Any) -> str | None:
    """The text of a reply in the form of chat completions or of responses; None where there is none."""
    if not isinstance(body, dict):
        return None
    choices = body.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        content = (choices[0].get("message") or {}).get("content")
        return content if isinstance(content, str) else None
    parts = [
        part.get("text")
        for item in body.get("output") or []
        if isinstance(item, dict) and item.get("type") == "message"
        for part in item.get("content") or []
        if isinstance(part, dict) and part.get("type") == "output_text"
    ]
    return "".join(part for part in parts if isinstance(part, str)) or None
