"""The workspace's file tools: read_file, write_code, edit_code, list_files."""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any, Final

from aiforge.core.settings import AIForgeSettings
from aiforge.tools.tool import ShippedTool, SlowTool, parameters
from aiforge.tools.workspace import Workspace

MOST_PAGES: Final = 500
"""Pages of one PDF whose text is read."""

_PATH: Final = {"type": "string", "description": "relative to the workspace, such as notes/plan.md"}


def tools(settings: AIForgeSettings) -> tuple[ShippedTool, ...]:
    """The tools on the folder `WORKSPACE`."""
    files = Files(Workspace(settings.WORKSPACE))
    return (
        SlowTool(
            "read_file",
            "Read a text file of the workspace, or the text of a PDF.",
            parameters(
                ["path"],
                path=_PATH,
                first_line={"type": "integer", "description": "from 1; the beginning when left out"},
                lines={"type": "integer", "description": "how many; all when left out"},
            ),
            files.read,
        ),
        SlowTool(
            "write_code",
            "Make or replace a text file of the workspace, source code or any other text.",
            parameters(["path", "text"], path=_PATH, text={"type": "string"}),
            files.write,
        ),
        SlowTool(
            "edit_code",
            "Replace one passage of a text file of the workspace.",
            parameters(
                ["path", "old", "new"],
                path=_PATH,
                old={"type": "string", "description": "the passage as it stands, exactly and only once"},
                new={"type": "string"},
            ),
            files.edit,
        ),
        SlowTool(
            "list_files",
            "List a folder of the workspace; folders end with a slash.",
            parameters([], path={**_PATH, "description": "the workspace itself when left out"}),
            files.names,
        ),
    )


class Files:
    """Text files of one workspace. Every method raises ValueError with a text for the model."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def read(self, path: str, first_line: int = 1, lines: int | None = None) -> str:
        data = self._workspace.read(path)
        text = pdf_text(data, path) if data.startswith(b"%PDF-") else _decoded(data, path)
        if first_line == 1 and lines is None:
            return text
        if first_line < 1 or (lines is not None and lines < 1):
            raise ValueError("first_line and lines must be at least 1")
        chosen = text.splitlines(keepends=True)[first_line - 1 :]
        return "".join(chosen if lines is None else chosen[:lines])

    def write(self, path: str, text: str) -> str:
        self._workspace.write(path, text.encode())
        return f"{path}: {len(text)} characters written"

    def edit(self, path: str, old: str, new: str) -> str:
        text = _decoded(self._workspace.read(path), path)
        count = text.count(old) if old else 0
        if count != 1:
            raise ValueError(
                f"the passage must stand in {path!r} exactly once; it stands there {count} times"
            )
        self._workspace.write(path, text.replace(old, new).encode())
        return f"{path}: replaced"

    def names(self, path: str = ".") -> str:
        return "\n".join(self._workspace.entries(path)) or "(empty)"


def pdf_text(data: bytes, path: str) -> str:
    """The text of a PDF's first pages; raises ValueError when it is damaged, locked or not readable here."""
    try:
        # An extra: loaded where a PDF is met.
        pypdf: Any = import_module("pypdf")
    except ImportError:
        raise ValueError("PDF files need a package of their own: pip install aiforge[workspace]") from None
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        pages = [page.extract_text() for page in reader.pages[:MOST_PAGES]]
    except (pypdf.errors.PyPdfError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path!r} is a PDF that cannot be read: {error}") from None
    return "\n\n".join(text.strip() for text in pages).strip() or "(a PDF without text)"


def _decoded(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path!r} is not a text file") from None
