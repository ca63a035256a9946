"""Words of a command line that go to the service: they have to be whole characters."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, TypeVar

import typer

from aiforge.cli import ids
from aiforge.cli.errors import CommandError, UsageError

Word = TypeVar("Word", str, str | None)
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Busy(StrEnum):
    """What becomes of a turn that meets a busy conversation."""

    ENQUEUE = "enqueue"
    REJECT = "reject"
    INTERRUPT = "interrupt"
    ROLLBACK = "rollback"


def whole(parameter: typer.CallbackParam, value: Word) -> Word:
    """A callback of an option or argument: what the shell passed must be UTF-8."""
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise UsageError(f"{parameter.opts[0]}: is not UTF-8") from None
    return value


MessageArgument = Annotated[
    str, typer.Argument(metavar="MESSAGE", help="What to say; - reads it from stdin.", callback=whole)
]
ConversationOption = Annotated[
    str | None,
    typer.Option(
        "--conversation", "-c", help="Go on with this conversation, or begin it.", callback=ids.conversation
    ),
]
SystemPromptOption = Annotated[str | None, typer.Option(help="Instructions for this turn.", callback=whole)]
ModelOption = Annotated[
    str | None, typer.Option(help="The model; the service's own when left out.", callback=whole)
]
TurnArgument = Annotated[str, typer.Argument(metavar="TURN", help="The turn's id.", callback=ids.turn)]
ConversationArgument = Annotated[
    str, typer.Argument(metavar="CONVERSATION", help="The conversation's id.", callback=ids.conversation)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON.")]
OnBusyOption = Annotated[
    Busy | None,
    typer.Option(help="When the conversation is busy; the conversation's own setting when left out."),
]
MaxTokensOption = Annotated[int | None, typer.Option(min=1, help="The longest answer, in tokens.")]


def read_text(message: str, name: str = "message") -> str:
    """The message itself, or what stdin says in its place."""
    try:
        text = sys.stdin.buffer.read().decode() if message == "-" else message
    except UnicodeDecodeError:
        raise CommandError(f"the {name} on stdin is not UTF-8") from None
    if not text.strip():
        raise CommandError(f"the {name} is empty")
    return text


def moment(value: str | None, option: str = "--run-after") -> float | None:
    """Unix seconds of `90s`, `10m`, `2h`, `1d` from now, or of a time such as 2030-01-31T08:00."""
    if value is None:
        return None
    number, unit = value[:-1], value[-1:]
    if unit in _UNITS and number.isascii() and number.isdigit():
        return time.time() + int(number) * _UNITS[unit]
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option}: 90s, 10m, 2h or 1d from now, or a time such as 2030-01-31T08:00"
        ) from None
