"""Notes that outlive a conversation: Markdown files in the workspace's folder `experiences`."""

from __future__ import annotations

import re
from typing import Final

from aiforge.core.settings import AIForgeSettings
from aiforge.tools.files import Files
from aiforge.tools.tool import ShippedTool, SlowTool, parameters
from aiforge.tools.workspace import Workspace

FOLDER: Final = "experiences"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _.-]{0,99}")
_NAMED: Final = {"type": "string", "description": "the note's name, such as alloy-phases"}
_TEXT: Final = {"type": "string"}


def tools(settings: AIForgeSettings) -> tuple[ShippedTool, ...]:
    """The tools on the notes below `WORKSPACE`."""
    notes = Notes(Workspace(settings.WORKSPACE / FOLDER))
    return (
        SlowTool("list_experiences", "List the notes of earlier work.", parameters([]), notes.names),
        SlowTool("read_experience", "Read a note.", parameters(["name"], name=_NAMED), notes.read),
        SlowTool(
            "write_experience",
            "Write a durable note in Markdown, or add to one.",
            parameters(
                ["name", "text"],
                name=_NAMED,
                text=_TEXT,
                append={"type": "boolean", "description": "add to the note instead of replacing it"},
            ),
            notes.write,
        ),
        SlowTool(
            "edit_experience",
            "Replace one passage of a note.",
            parameters(["name", "old", "new"], name=_NAMED, old=_TEXT, new=_TEXT),
            notes.edit,
        ),
    )


class Notes:
    """Every method raises ValueError with a text for the model."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._files = Files(workspace)

    def names(self) -> str:
        if not self._workspace.root.is_dir():
            return "(there are no notes)"
        found = [name.removesuffix(".md") for name in self._workspace.entries() if name.endswith(".md")]
        return "\n".join(found) or "(there are no notes)"

    def read(self, name: str) -> str:
        return self._files.read(_file(name))

    def write(self, name: str, text: str, append: bool = False) -> str:
        file = _file(name)
        if append and file in self._existing():
            text = f"{self._files.read(file).rstrip()}\n\n{text}"
        self._files.write(file, text)
        return f"note {file.removesuffix('.md')} written"

    def edit(self, name: str, old: str, new: str) -> str:
        return self._files.edit(_file(name), old, new)

    def _existing(self) -> list[str]:
        return self._workspace.entries() if self._workspace.root.is_dir() else []


def _file(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError("a note's name is made of letters, digits, spaces, . _ and -")
    return f"{name.removesuffix('.md')}.md"
