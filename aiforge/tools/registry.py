"""Tools by name: what a request or a configuration may ask for.

Four tools are always there, and those of one's own (`own.py`). The others come in families, each of which
a setting switches on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

import msgspec

from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ConfigError
from aiforge.tools import builtin
from aiforge.tools.human import ask_human
from aiforge.tools.own import own_tools
from aiforge.tools.tool import ToolLike


class _Family(msgspec.Struct, frozen=True):
    """The tools `names`, offered by the setting `switch` and made by `module`.tools(settings)."""

    switch: str
    module: str
    names: frozenset[str]


_TOOLS: Final = {tool.name: tool for tool in (*builtin.TOOLS, ask_human)}
_FAMILIES: Final = (
    _Family(
        "FILE_TOOLS",
        "files",
        frozenset({"read_file", "read_image_tool", "write_code", "edit_code", "list_files"}),
    ),
    _Family(
        "EXPERIENCE_TOOLS",
        "experience",
        frozenset({"list_experiences", "read_experience", "write_experience", "edit_experience"}),
    ),
    _Family("COMMAND_TOOLS", "commands", frozenset({"run_command"})),
    _Family("DOWNLOAD_TOOLS", "download", frozenset({"download_file_tool"})),
    _Family(
        "WEB_TOOLS",
        "research",
        frozenset({"research", "run_web_search", "run_arxiv_search", "run_osti_search"}),
    ),
    _Family("RAG_FOLDER", "rag", frozenset({"search_documents"})),
)


def names(settings: AIForgeSettings | None = None) -> frozenset[str]:
    """All names that `resolve` knows with these settings."""
    return _offered(settings)


def resolve(names: Sequence[str], settings: AIForgeSettings | None = None) -> list[ToolLike]:
    """The tools of these names, in this order; raises ConfigError on an unknown or repeated name."""
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ConfigError(f"tool {name!r} is named twice")
    if not names:
        return []
    known: dict[str, ToolLike] = {**_own(settings), **_TOOLS}
    for family in _families(settings):
        if family.names & set(names):
            # The HTTP client alone takes a tenth of a second: loaded where a family is used.
            made = import_module(f"aiforge.tools.{family.module}").tools(settings)
            known |= {tool.name: tool for tool in made}
    for name in names:
        if name not in known:
            raise ConfigError(_unknown(name, settings))
    return [known[name] for name in names]


def _offered(settings: AIForgeSettings | None) -> frozenset[str]:
    return frozenset(_TOOLS).union(_own(settings), *(family.names for family in _families(settings)))


def _own(settings: AIForgeSettings | None) -> Mapping[str, ToolLike]:
    """Tools of one's own; the name of one that ships is taken."""
    own = own_tools(settings.TOOLS if settings is not None else "")
    for name in own:
        if name in _TOOLS or any(name in family.names for family in _FAMILIES):
            raise ConfigError(f"AIFORGE_TOOLS: the name {name!r} is that of a tool that ships")
    return own


def _families(settings: AIForgeSettings | None) -> list[_Family]:
    return [family for family in _FAMILIES if settings is not None and getattr(settings, family.switch)]


def _unknown(name: str, settings: AIForgeSettings | None) -> str:
    family = next((family for family in _FAMILIES if name in family.names), None)
    if family is not None:
        return f"tool {name!r} is switched off; the setting {family.switch} offers it"
    return f"unknown tool {name!r}; known are {', '.join(sorted(_offered(settings)))}"
