"""`aiforge files …`: what batches are made of, and what they leave."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from aiforge.cli import ids
from aiforge.cli.arguments import JsonOption, whole
from aiforge.cli.connect import connected
from aiforge.cli.errors import UsageError
from aiforge.cli.fetch import must_be_new, save
from aiforge.cli.output import as_json, data, listed, note, when
from aiforge.client import File

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="The file's id.", callback=ids.file)]


def put(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="JSONL, one request a line.")],
    *,
    expires_after: Annotated[
        int | None,
        typer.Option(min=1, metavar="SECONDS", help="How long it lives."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Upload a file of requests; prints its id."""
    must_be_file(path)
    with connected(start=False) as client:
        made = client.upload(path, expires_after=expires_after)
    data(as_json(made) if json else made.id)


def ls(
    *,
    limit: Annotated[int | None, typer.Option(min=1, help="How many; all when left out.")] = None,
    json: JsonOption = False,
) -> None:
    """List files, the newest first; with --json one object a line."""
    with connected(start=False) as client:
        found = islice(client.files(), limit)
        listed((as_json(each) if json else _line(each) for each in found), "no files")


def get(
    file_id: FileArgument,
    *,
    target: Annotated[
        str, typer.Option("--output", "-o", metavar="OUT", help="Where to; - is stdout.", callback=whole)
    ] = "-",
) -> None:
    """Download a file."""
    must_be_new(target)
    with connected(start=False) as client:
        save(target, client.download(file_id))


def rm(file_id: FileArgument) -> None:
    """Delete a file."""
    with connected(start=False) as client:
        client.delete_file(file_id)
    note(f"{file_id} is gone")


def must_be_file(path: Path) -> None:
    """Raises UsageError."""
    if not path.exists():
        raise UsageError(f"{path}: no such file")
    if not path.is_file():
        raise UsageError(f"{path}: is no file")


def _line(found: File) -> str:
    parts = [found.id, f"{found.bytes:,} bytes", found.purpose, when(found.created_at)]
    if found.expires_at is not None:
        parts.append(f"until {when(found.expires_at)}")
    return "  ".join([*parts, found.filename])
