"""The requests about files: what batches are made of, and what they leave."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from aiforge.client.calls import Call, Form, nothing, one, path_of
from aiforge.client.errors import RequestError

PAGE_FILES: Final = 1000
_NAME: Final = "files"
_PATH: Final = f"/v1/{_NAME}"


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the service. Times are Unix seconds; one without `expires_at` stays."""

    id: str
    filename: str
    purpose: str
    bytes: int
    created_at: float | None = None
    expires_at: float | None = None


class Listed(msgspec.Struct):
    """Some files, and whether there are more."""

    data: list[File]
    has_more: bool = False


_file: Final = one(File)
_listed: Final = one(Listed)


@contextmanager
def upload(path: Path, filename: str | None, expires_after: int | None) -> Iterator[Call[File]]:
    """The file is read while it is sent; raises OSError, or RequestError for a name that cannot be sent."""
    name = path.name if filename is None else filename
    try:
        name.encode()
    except UnicodeEncodeError:
        raise RequestError(f"the file's name {name!r} is not UTF-8") from None
    fields: dict[str, Any] = {"purpose": "batch"}
    if expires_after is not None:
        fields |= {"expires_after[anchor]": "created_at", "expires_after[seconds]": str(expires_after)}
    with path.open("rb") as file:
        yield Call("POST", _PATH, _file, form=Form(name, file, fields))


def latest(after: str | None) -> Call[Listed]:
    params = {"limit": str(PAGE_FILES)} | ({} if after is None else {"after": after})
    return Call("GET", _PATH, _listed, params=params)


def read(file_id: str) -> Call[File]:
    return Call("GET", path_of(_NAME, file_id), _file)


def content(file_id: str) -> str:
    """The path of a file's bytes."""
    return f"{path_of(_NAME, file_id)}/content"


def delete(file_id: str) -> Call[None]:
    return Call("DELETE", path_of(_NAME, file_id), nothing)
