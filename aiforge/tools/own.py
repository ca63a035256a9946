"""Tools of one's own by name: those that the setting TOOLS points at, and those that a package installs.

A package offers a tool, or a list of them, as an entry point of the group `aiforge.tools`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Final

from aiforge.core.places import load
from aiforge.core.types import ConfigError

GROUP: Final = "aiforge.tools"


@functools.cache
def own_tools(places: str) -> Mapping[str, Any]:
    """The tools at `places` (with commas) and those that are installed, by name.

    Raises ConfigError naming the place.
    """
    found: dict[str, Any] = {}
    named = [place.strip() for place in places.split(",") if place.strip()]
    for place in (*named, *(point.value for point in entry_points(group=GROUP))):
        for tool in _at(place):
            name = getattr(tool, "name", None)
            if not isinstance(name, str) or not callable(getattr(tool, "invoke", None)):
                raise ConfigError(f"AIFORGE_TOOLS: {tool!r} of {place} is no tool: no .name and .invoke()")
            if name in found:
                raise ConfigError(f"AIFORGE_TOOLS: two tools have the name {name!r}")
            found[name] = tool
    return found


def _at(place: str) -> Sequence[Any]:
    module, _, attribute = place.partition(":")
    value = load(module, attribute or "tools", what=f"AIFORGE_TOOLS: {place}")
    return value if isinstance(value, (list, tuple)) else [value]
