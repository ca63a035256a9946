"""The requests about files: what batches are made of, and what they leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from aiforge.client.call import Call, Form, Page, nothing, one, pages, path_of, said
from aiforge.client.errors import RequestError
from aiforge.client.results import File

PAGE_FILES: Final = 1000
_NAME: Final = "files"
_PATH: Final = f"/v1/{_NAME}"
_file: Final = one(File)


@contextmanager
def upload(path: Path, filename: str | None, expires_after: int | None) -> Iterator[Call[File]]:
    """The file is read while it is sent; raises OSError, or RequestError for a name that cannot be sent."""
    name = path.name if filename is None else filename
    try:
        name.encode()
    except UnicodeEncodeError:
        raise RequestError(f"the file's name {name!r} is not UTF-8") from None
    fields = {"purpose": "batch"}
    if expires_after is not None:
        fields |= {"expires_after[anchor]": "created_at", "expires_after[seconds]": str(expires_after)}
    with path.open("rb") as file:
        yield Call("POST", _PATH, _file, form=Form(name, file, fields))


def latest(after: str | None = None) -> Call[Page[File]]:
    params = said(limit=str(PAGE_FILES), after=after)
    return pages(File, _PATH, params, lambda answer: latest(answer.data[-1].id))


def read(file_id: str) -> Call[File]:
    return Call("GET", path_of(_NAME, file_id), _file)


def content(file_id: str) -> str:
    """The path of a file's bytes."""
    return path_of(_NAME, file_id, "content")


def delete(file_id: str) -> Call[None]:
    return Call("DELETE", path_of(_NAME, file_id), nothing)
