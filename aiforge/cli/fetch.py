"""The rows of a batch that is over, and the bytes of files, into files or stdout."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from aiforge.cli import answers
from aiforge.cli.errors import UsageError
from aiforge.cli.output import as_json, note
from aiforge.client import Batch, Client, Row
from aiforge.questions.output import real, replacing
from aiforge.questions.reading import Format, format_of, has_tabs
from aiforge.questions.shape import COLUMNS

INLINE: Final = "inline"
"""Stands in a batch in place of a file: its items came in the request."""
_COLUMNS: Final = tuple(name for name in COLUMNS if name not in ("question", "digest"))


def must_be_free(target: str) -> None:
    """Raises UsageError unless rows can go there: nothing that is there already is overwritten."""
    answers.must_have_format(target)
    must_be_new(target)


def must_be_new(target: str) -> None:
    """Raises UsageError when there is such a file, or no folder for it."""
    path = Path(target)
    if target == "-":
        return
    if not real(path).parent.is_dir():
        raise UsageError(f"{target}: there is no such folder")
    if path.exists():
        raise UsageError(f"{target}: is there already; name another file with -o")


def fetch(client: Client, batch: Batch, target: str) -> None:
    """All rows in input order; of a batch that was a file, as its files where JSONL is asked for."""
    form: Format = format_of(target) or "jsonl"
    if form == "jsonl" and batch.input_file_id not in (None, INLINE):
        _fetch_files(client, batch, target)
        return
    delimiter = "\t" if has_tabs(target) else ","
    count = save(target, _lines(client.results(batch.id), form, delimiter))
    note(f"{count - (form == 'csv')} rows → {'stdout' if target == '-' else target}")


def _fetch_files(client: Client, batch: Batch, target: str) -> None:
    if batch.output_file_id is None:
        note("no line has an answer, so there is no output file", style="yellow")
    else:
        save(target, client.download(batch.output_file_id))
        note(f"{batch.request_counts.completed} lines → {'stdout' if target == '-' else target}")
    if batch.error_file_id is None:
        return
    if target == "-":
        note(f"what failed: aiforge files get {batch.error_file_id}", style="yellow")
        return
    beside = str(Path(target).with_name(f"{Path(target).stem}.errors.jsonl"))
    save(beside, client.download(batch.error_file_id))
    note(f"what failed is in {beside}", style="yellow")


def _lines(rows: Iterable[Row], form: Format, delimiter: str) -> Iterator[bytes]:
    if form == "csv":
        yield _cells(_COLUMNS, delimiter)
    for row in rows:
        record = {"index": row.index, "id": row.id, **answers.record(row)}
        if form == "csv":
            yield _cells([record.get(name) for name in _COLUMNS], delimiter)
        else:
            yield (as_json({name: record.get(name) for name in _COLUMNS}) + "\n").encode()


def _cells(cells: Iterable[Any], delimiter: str) -> bytes:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator="\r\n").writerow(cells)
    return out.getvalue().encode()


def save(target: str, pieces: Iterable[bytes]) -> int:
    """Write to stdout, or to a file that has its name only when it is whole; how many pieces."""
    count = 0
    with _whole(target) as file:
        for piece in pieces:
            file.write(piece)
            count += 1
    return count


@contextmanager
def _whole(target: str) -> Iterator[IO[bytes]]:
    if target == "-":
        stdout = answers.stdout()
        yield stdout
        stdout.flush()
        return
    with replacing(Path(target)) as file:
        yield file
