"""The workspace's file tools: read_file, read_image_tool, write_code, edit_code, list_files."""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any, Final

from aiforge.core.settings import AIForgeSettings
from aiforge.tools.tool import Image, ShippedTool, SlowTool, parameters
from aiforge.tools.workspace import Workspace

MOST_PAGES: Final = 500
"""Pages of one PDF whose text is read."""
LARGEST_IMAGE: Final = 5 * 1024 * 1024 * 3 // 4
"""Bytes of a picture; in base64 it is 5 MB then, the least that large providers take."""

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
            "read_image_tool",
            "Look at an image of the workspace: PNG, JPEG, GIF or WebP. You see it after the result.",
            parameters(["path"], path=_PATH),
            files.image,
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
    """Files of one workspace. Every method raises ValueError with a text for the model."""

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

    def image(self, path: str) -> Image:
        data = self._workspace.read(path)
        kind = _image_type(data)
        if kind is None:
            raise ValueError(f"{path!r} is no PNG, JPEG, GIF or WebP image")
        if len(data) > LARGEST_IMAGE:
            raise ValueError(f"{path!r} has {len(data)} bytes; at most {LARGEST_IMAGE} can be looked at")
        return Image(path, kind, data)

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
    return "\n\n".join(pdf_pages(data, path)).strip() or "(a PDF without text)"


def pdf_pages(data: bytes, path: str) -> list[str]:
    """The same, page by page."""
    try:
        # An extra: loaded where a PDF is met.
        pypdf: Any = import_module("pypdf")
    except ImportError:
        raise ValueError("PDF files need a package of their own: pip install aiforge[workspace]") from None
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        return [page.extract_text().strip() for page in reader.pages[:MOST_PAGES]]
    except (pypdf.errors.PyPdfError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path!r} is a PDF that cannot be read: {error}") from None


def _image_type(data: bytes) -> str | None:
    """What a picture is by its first bytes, whatever its name says."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def _decoded(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path!r} is not a text file") from None
