"""Which encoding a file is in: said by a byte order mark, shown by all of its bytes, or asked for."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from aiforge.questions.errors import UnclearError

PIECE: Final = 1024 * 1024
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8 with a byte order mark"),
    (codecs.BOM_UTF32_LE, "", "UTF-32"),
    (codecs.BOM_UTF32_BE, "", "UTF-32"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
_HIGH: Final = re.compile(rb"[\x80-\xff]+")
_ODD_IN_A_WORD: Final = re.compile(
    rb"[A-Za-z][\x80\x82-\x84\x86-\x89\x8b\x93-\x95\x98\x99\x9b\xa1-\xac\xae-\xb3\xb5\xb6\xb8-\xbf\xd7\xf7]+[a-z]"
)
"""A sign of Windows-1252 that is no letter, between letters: another code page's letter."""
_UNDEFINED: Final = re.compile(rb"[\x81\x8d\x8f\x90\x9d]|(?<![A-Za-z])\xff")
_LONGEST_RUN: Final = 3
_MOST_HIGH: Final = 0.3


@dataclass(frozen=True, slots=True)
class Encoding:
    """A codec, how it treats what it cannot decode, and what people call it.

    Both error handlers turn what is no character into lone surrogates, so the line that holds it can
    be named.
    """

    codec: str
    label: str

    @property
    def errors(self) -> str:
        wide = codecs.lookup(self.codec).name.startswith(("utf-16", "utf-32"))
        return "surrogatepass" if wide else "surrogateescape"


UTF_8: Final = Encoding("utf-8", "UTF-8")
WINDOWS_1252: Final = Encoding("cp1252", "Windows-1252")


def named(encoding: str, path: Path) -> Encoding:
    """The encoding that somebody asked for; raises UnclearError for a name that is none."""
    try:
        codec = codecs.lookup(encoding)
        "".encode(encoding)
        bytes(1).decode(encoding, "ignore")
    except (LookupError, ValueError):
        raise UnclearError(f"--encoding: {encoding!r} is no encoding; utf-8, utf-16 and cp1252 are") from None
    with path.open("rb") as file:
        marked = file.read(3) == codecs.BOM_UTF8
    if codec.name == "utf-8":
        return Encoding("utf-8-sig" if marked else "utf-8", "UTF-8")
    return Encoding(codec.name, encoding)


def detect(path: Path, name: str) -> Encoding:
    """The one obvious encoding of a file; raises UnclearError when there is none.

    A file that is neither UTF-8 nor surely something else counts as UTF-8: its bad lines get named.
    """
    with path.open("rb") as file:
        head = file.read(4096)
        for mark, codec, label in _MARKS:
            if head.startswith(mark):
                if not codec:
                    raise UnclearError(f"{name}: is {label}; name it with --encoding utf-32")
                return Encoding(codec, label)
        if (wide := _without_a_mark(head)) is not None:
            return wide
        file.seek(0)
        if _is_utf_8(file):
            return UTF_8
        file.seek(0)
        return WINDOWS_1252 if _is_western(file) else UTF_8


def _without_a_mark(head: bytes) -> Encoding | None:
    """UTF-16 when nearly every other byte is zero and none of those between."""
    pairs = len(head) // 2
    even, odd = head[0 : 2 * pairs : 2].count(0), head[1 : 2 * pairs : 2].count(0)
    if pairs >= 2 and even == 0 and odd > 0.7 * pairs:
        return Encoding("utf-16-le", "UTF-16 without a byte order mark")
    if pairs >= 2 and odd == 0 and even > 0.7 * pairs:
        return Encoding("utf-16-be", "UTF-16 without a byte order mark")
    return None


def _is_utf_8(file: BinaryIO) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for piece in iter(lambda: file.read(PIECE), b""):
            decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _is_western(file: BinaryIO) -> bool:
    """Whether a file that is not UTF-8 reads as Windows-1252 and as nothing else.

    Not with a sequence of UTF-8 in it (a broken or mixed file), nor with long runs or many of the
    upper characters, nor with its signs inside words (another code page's letters).
    """
    high = letters = 0
    for piece in _whole_lines(file):
        if _UNDEFINED.search(piece) or _ODD_IN_A_WORD.search(piece):
            return False
        for found in _HIGH.findall(piece):
            high += sum(byte >= 0xC0 for byte in found)
            if len(found) > _LONGEST_RUN or _holds_utf_8(found):
                return False
        letters += sum(map(piece.count, b"abcdefghijklmnopqrstuvwxyz"))
    return high <= _MOST_HIGH * (high + letters)


def _holds_utf_8(run: bytes) -> bool:
    return any(
        ord(letter) < 0xDC80 or ord(letter) > 0xDCFF for letter in run.decode("utf-8", "surrogateescape")
    )


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Pieces that end between characters of ASCII, as far as that matters here."""
    while piece := file.read(PIECE):
        yield piece + file.readline(PIECE)
