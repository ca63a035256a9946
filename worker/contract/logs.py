"""Log lines: one JSON object or one console line each, on stderr; never the text of a message."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any, Final, Literal, TextIO, cast

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger, Processor

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "console"]

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_FIELDS: Final = ("turn", "batch", "file", "attempt", "count", "reason", "schedule", "worker", "works")
"""What our own `logging` calls may carry in `extra`."""


def logger(service: str, level: Level, style: Format) -> FilteringBoundLogger:
    """A logger of our own, so that nothing global is touched; `auto` is console on a terminal."""
    if style == "json" or (style == "auto" and not sys.stderr.isatty()):
        stamp: Processor = structlog.processors.TimeStamper(fmt="iso", utc=True)
        render: Processor = structlog.processors.JSONRenderer(serializer=_json)
    else:
        stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
        render = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    log: FilteringBoundLogger = structlog.wrap_logger(
        structlog.WriteLogger(cast(TextIO, _Stderr())),
        processors=[structlog.processors.add_log_level, stamp, render],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        service=service,
    )
    return log


def where(error: BaseException) -> list[str]:
    """The frames of an error without its text, which may quote a message or a key."""
    return [
        f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
    ]


class _Stderr:
    """Whatever `sys.stderr` is at the moment of writing."""

    def write(self, text: str) -> None:
        sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class Forward(logging.Handler):
    """Carries what is logged through `logging` into our lines, without a traceback's text."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name}
        fields |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            fields |= {"error": type(error).__name__, "frames": where(error)}
        self._log.log(record.levelno, record.getMessage().partition("\n")[0], **fields)


def _json(value: object, **_options: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
