"""What environment and files say, before any settings class makes sense of it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic_settings import EnvSettingsSource, SettingsError

from aiforge.core.types import ConfigError

_QUOTED: Final = re.compile(r'"(\w+)"')


class Stamp(NamedTuple):
    """All that settings are read from. The files' own bytes, because a time of change can repeat."""

    environment: frozenset[tuple[str, str]]
    folder: Path
    dotenv: bytes | None
    yaml: bytes | None


class Found(NamedTuple):
    """One reading: values by field, and variables that nobody reads, each with a hint."""

    stamp: Stamp
    values: dict[str, Any]
    unknown: list[tuple[str, str]]


def stamp_now(dotenv: str, yaml: str) -> Stamp:
    """What the sources look like now; `dotenv` and `yaml` are file names."""
    return Stamp(frozenset(os.environ.items()), Path.cwd(), _content(dotenv), _content(yaml))


def said(source: EnvSettingsSource) -> dict[str, Any]:
    """What one source says; raises ConfigError where that is no JSON and has to be."""
    try:
        values: dict[str, Any] = source()
        return values
    except SettingsError as error:
        field = _QUOTED.search(str(error))
        name = source.env_prefix + field.group(1).upper() if field else "a setting"
        raise ConfigError(f"{name}: must be written as JSON ({error.__cause__})") from None


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """`above` before `below`; mappings in both are merged likewise."""
    both = {**below, **above}
    for name in below.keys() & above.keys():
        if isinstance(below[name], dict) and isinstance(above[name], dict):
            both[name] = merged(below[name], above[name])
    return both


def _content(name: str) -> bytes | None:
    path = Path(name)
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None  # whoever reads it for its settings says what is wrong
