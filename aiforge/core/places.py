"""Code that a setting or a package names by where it is."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import Any

from aiforge.core.types import ConfigError


def load(module: str, attribute: str, *, what: str) -> Any:
    """What stands at `module:attribute`, dots included. Raises ConfigError: `what` cannot be loaded."""
    try:
        return attrgetter(attribute)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{what} cannot be loaded: {error}") from error
