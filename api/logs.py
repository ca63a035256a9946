"""Log lines: one JSON object or one console line each, on stderr; never the text of a message."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from typing import Any, Final

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger, Processor

from api.settings import ApiSettings

_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class _Stderr:
    """Writes lines to whatever stderr is now; a log that cannot be written must not fail a request."""

    def msg(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    debug = info = warning = error = critical = msg


def logger(settings: ApiSettings) -> FilteringBoundLogger:
    """A logger of our own, so that nothing global is touched."""
    level = _LEVELS[settings.log_level]
    shared: list[Processor] = [structlog.processors.add_log_level]
    if settings.log_format == "json":
        stamp: Processor = structlog.processors.TimeStamper(fmt="iso", utc=True)
        render: Processor = structlog.processors.JSONRenderer(serializer=_json)
    else:
        stamp = structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False)
        render = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    log: FilteringBoundLogger = structlog.wrap_logger(
        _Stderr(),
        processors=[*shared, stamp, render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        service="api",
    )
    return log


def where(error: BaseException) -> list[str]:
    """The frames of an error without its text, which may quote a message or a key."""
    return [
        f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
    ]


class Forward(logging.Handler):
    """Carries what libraries log through `logging` into our lines, without their tracebacks' text."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            fields |= {"error": type(error).__name__, "frames": where(error)}
        self._log.log(record.levelno, record.getMessage().partition("\n")[0], **fields)


def _json(value: object, **_options: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
