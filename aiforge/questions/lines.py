"""A file as numbered lines of text, one at a time.

Only LF ends a line, with or without a CR before it: U+2028, U+2029 and U+0085 are text. What is no
character arrives as a lone surrogate, so that whoever reads can name its line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from aiforge.questions.encoding import Encoding
from aiforge.questions.errors import BadRow

LONGEST_RECORD: Final = 16 * 1024 * 1024
"""In characters; a longer line is refused, so none can fill the memory."""
MOST_LINES: Final = 300_000
"""Of one record of CSV, for the same reason."""
SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file, and how its bytes are read."""

    path: Path
    encoding: Encoding
    stamp: tuple[int, int] | None = None
    """Size and time of the last change that it must keep; None where it may change."""

    def lines(self) -> Iterator[tuple[int, str]]:
        """Numbers from 1 and lines with their ends; of a longer one its first LONGEST_RECORD + 1.

        Raises Changed before a line that was read later than somebody else's writing.
        """
        encoding = self.encoding
        with self.path.open(encoding=encoding.codec, errors=encoding.errors, newline="\n") as file:
            number = 0
            while line := _next(file, LONGEST_RECORD + 1):
                number += 1
                if self.stamp is not None and stamp_of(os.fstat(file.fileno())) != self.stamp:
                    raise Changed
                yield number, line
                while len(line) >= LONGEST_RECORD and not line.endswith("\n"):
                    line = _next(file, LONGEST_RECORD)


class Changed(Exception):
    """A file is not any more what it was when its reading began."""


def stamp_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


def _next(file: TextIO, size: int) -> str:
    """The next line or a piece of it; a torn character at the end of the file is a lone surrogate."""
    try:
        return file.readline(size)
    except UnicodeDecodeError:
        file.seek(0, os.SEEK_END)
        return "\udfff\n"


def must_be_text(record: str, encoding: Encoding) -> None:
    """Raises BadRow for what is no text: too much of it, undecodable bytes or a NUL."""
    if len(record) > LONGEST_RECORD:
        raise BadRow(f"is longer than {LONGEST_RECORD} characters")
    if not record.isascii() and (found := SURROGATE.search(record)):
        code = ord(found.group()) - 0xDC00
        wrong = (
            f" (byte 0x{code:02x})" if encoding.errors == "surrogateescape" and 0x80 <= code <= 0xFF else ""
        )
        label = "UTF-8" if encoding.codec.startswith("utf-8") else encoding.label
        raise BadRow(f"is not {label}{wrong}; --encoding says what it is")
    if "\0" in record:
        raise BadRow("holds a NUL, which is no text")
