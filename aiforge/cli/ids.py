"""Ids on the command line: what cannot be one is refused before anything is asked, by its argument's name."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeVar

import typer

from aiforge.cli.errors import UsageError

Word = TypeVar("Word", str, str | None)


class _Kind(NamedTuple):
    """What the ids of some things look like, as a pattern and in words."""

    pattern: re.Pattern[str]
    words: str


_TURN: Final = _Kind(re.compile(r"[0-9]{2}[0-9a-f]{20}"), "a turn's id, such as 171f0a93c2d4e5b6a7f809")
_BATCH: Final = _Kind(
    re.compile(r"batch_[0-9]{2}[0-9a-f]{20}"), "a batch's id, such as batch_171f0a93c2d4e5b6a7f809"
)
_FILE: Final = _Kind(
    re.compile(r"file-[0-9]{2}[0-9a-f]{20}"), "a file's id, such as file-171f0a93c2d4e5b6a7f809"
)
_SCHEDULE: Final = _Kind(
    re.compile(r"sched_[0-9]{2}[0-9a-f]{20}"), "a schedule's id, such as sched_171f0a93c2d4e5b6a7f809"
)
_CONVERSATION: Final = _Kind(
    re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,128}"),
    "1 to 128 characters of A-Z a-z 0-9 . _ - and not only one dot or two",
)


def turn(parameter: typer.CallbackParam, value: Word) -> Word:
    """A callback of an argument or option that names a turn."""
    return _checked(parameter, value, _TURN)


def batch(parameter: typer.CallbackParam, value: Word) -> Word:
    """A callback of an argument or option that names a batch."""
    return _checked(parameter, value, _BATCH)


def turn_or_batch(parameter: typer.CallbackParam, value: Word) -> Word:
    """A callback of an argument that names a turn or a batch."""
    return _checked(parameter, value, _BATCH if (value or "").startswith("batch_") else _TURN)


def file(parameter: typer.CallbackParam, value: Word) -> Word:
    """A callback of an argument or option that names a file."""
    return _checked(parameter, value, _FILE)


def schedule(parameter: typer.CallbackParam, value: Word) -> Word:
    """A callback of an argument or option that names a schedule."""
    return _checked(parameter, value, _SCHEDULE)


def conversation(parameter: typer.CallbackParam, value: Word) -> Word:
    """A callback of an argument or option that names a conversation, or one that is to be."""
    return _checked(parameter, value, _CONVERSATION)


def _checked(parameter: typer.CallbackParam, value: Word, kind: _Kind) -> Word:
    if value is not None and not kind.pattern.fullmatch(value):
        raise UsageError(f"{_name(parameter)}: must be {kind.words}, not {value[:64]!r}")
    return value


def _name(parameter: typer.CallbackParam) -> str:
    """As the help calls it."""
    if parameter.param_type_name == "option":
        return str(parameter.opts[0])
    return str(getattr(parameter, "metavar", None) or parameter.opts[0]).strip("[]")
