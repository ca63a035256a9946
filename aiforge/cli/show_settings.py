"""Prints every setting as JSON: its name, value and source. Run as a process by `aiforge config`.

The modules named on the command line are loaded here, in a process of its own, because the command
line itself never imports the service.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from dotenv import dotenv_values
from pydantic import AliasChoices, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from aiforge.core.settings import PREFIX, YAML_FILE, AIForgeSettings, Settings, read_yaml
from aiforge.core.types import ConfigError

CLIENT_MODULES: Final = ("aiforge.cli.settings",)
SERVICE_MODULES: Final = ("worker.settings", "api.settings", *CLIENT_MODULES)
MASK: Final = "********"
_PASSWORD: Final = re.compile(r"(?<=://)([^@/]*:)?[^@/]+(?=@)|(?<=password=)[^&]+")


class Shown(msgspec.Struct, frozen=True):
    """One setting; `error` is set instead of a value where the settings cannot be read."""

    name: str
    value: str | None = None
    source: str = "default"
    error: str | None = None


class Sources:
    """Where a setting can come from, in the order in which they win."""

    def __init__(self) -> None:
        self._environment = {name for name, value in os.environ.items() if value}
        try:
            self._dotenv = {name for name, value in dotenv_values(".env").items() if value}
        except (UnicodeDecodeError, OSError) as error:
            raise ConfigError(f".env cannot be read: {error}") from None
        document = read_yaml(Path(YAML_FILE))
        sections: list[Mapping[str, Any]] = [document]
        sections += [section for section in document.values() if isinstance(section, dict)]
        self._yaml = {key.upper() for section in sections for key in section}

    def of(self, names: Sequence[str]) -> str:
        for name in names:
            if name in self._environment:
                return f"environment {name}"
        for name in names:
            if name in self._dotenv:
                return f".env {name}"
        return YAML_FILE if names[0].removeprefix(PREFIX) in self._yaml else "default"


def settings_classes(modules: Sequence[str]) -> Iterator[type[Settings]]:
    """The library's settings, then those of the modules."""
    yield AIForgeSettings
    for module in modules:
        importlib.import_module(module)
    found = list(Settings.__subclasses__())
    while found:
        kind = found.pop(0)
        found += kind.__subclasses__()
        if kind is not AIForgeSettings and kind.__module__ in modules:
            yield kind


def all_settings(modules: Sequence[str]) -> list[Shown]:
    sources = Sources()
    found: dict[str, Shown] = {}
    for kind in settings_classes(modules):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                settings = kind.load()
        except ConfigError as error:
            found.setdefault(str(error), Shown("", error=str(error)))
            continue
        for field, info in kind.model_fields.items():
            names = names_of(field, info)
            found.setdefault(names[0], Shown(names[0], readable(getattr(settings, field)), sources.of(names)))
    return sorted(found.values(), key=lambda shown: shown.name)


def names_of(field: str, info: FieldInfo) -> list[str]:
    """A setting's variables, our own one first."""
    own = f"{PREFIX}{field.upper()}"
    others = info.validation_alias.choices if isinstance(info.validation_alias, AliasChoices) else []
    return [own, *(str(name) for name in others if name != own)]


def readable(value: object) -> str | None:
    """As one would write it, lists and tables as JSON; of a secret only that it is set."""
    match value:
        case None | "":
            return None
        case SecretStr():
            return MASK
        case str() | Path():
            text = str(value)
        case float():
            text = f"{value:.15g}"
        case _:
            text = to_json(value, fallback=str).decode()
    return _PASSWORD.sub(rf"\g<1>{MASK}", text) if "://" in text else text


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(all_settings(sys.argv[1:])).decode() + "\n")
