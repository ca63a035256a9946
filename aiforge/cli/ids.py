"""Ids on the command line: what cannot be one is refused before anything is asked, by its argument's name."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeVar

import typer

from aiforge.cli.errors import UsageError
from aiforge.core import names

Word = TypeVar("Word", str, str | None)


class _Kind(NamedTuple):
    """What the ids of some things look like, as a pattern and in words."""

    pattern: re.Pattern[str]
    words: str


_TURN: Final = _Kind(re.compile(names.TURN_ID), names.TURN_WORDS)
_BATCH: Final = _Kind(re.compile(names.BATCH_ID), names.BATCH_WORDS)
_FILE: Final = _Kind(re.compile(names.FILE_ID), names.FILE_WORDS)
_SCHEDULE: Final = _Kind(re.compile(names.SCHEDULE_ID), names.SCHEDULE_WORDS)
_CONVERSATION: Final = _Kind(names.CONVERSATION_ID, names.CONVERSATION_WORDS)


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
