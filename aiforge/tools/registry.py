"""Tools by name: what a request or a configuration may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiforge.core.types import ConfigError
from aiforge.tools import builtin
from aiforge.tools.tool import Tool

_TOOLS: Final = {tool.name: tool for tool in builtin.TOOLS}


def names() -> frozenset[str]:
    """All names that `resolve` knows."""
    return frozenset(_TOOLS)


def resolve(names: Sequence[str]) -> list[Tool]:
    """The tools of these names, in this order; raises ConfigError on an unknown or repeated name."""
    for position, name in enumerate(names):
        if name not in _TOOLS:
            raise ConfigError(f"unknown tool {name!r}; known are {', '.join(sorted(_TOOLS))}")
        if name in names[:position]:
            raise ConfigError(f"tool {name!r} is named twice")
    return [_TOOLS[name] for name in names]
