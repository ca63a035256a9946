"""Which encoding a file is in: said by a byte order mark, shown by all of its bytes, or asked for."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final

from aiforge.questions.alphabets import Letters
from aiforge.questions.errors import UnclearError

PIECE: Final = 1024 * 1024
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8 with a byte order mark"),
    (codecs.BOM_UTF32_LE, "", "UTF-32"),
    (codecs.BOM_UTF32_BE, "", "UTF-32"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)
_OTHERS: Final = (
    (b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (b"BZh91AY", "compressed with bzip2; unpack it first"),
    (b"\xfd7zXZ", "compressed with xz; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it first"),
    (b"PK\x03\x04", "a ZIP archive, as spreadsheets are; unpack it, or save its table as CSV"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a spreadsheet of old Excel; save its table as CSV"),
    (b"PAR1\x15", "a Parquet file; save its table as CSV or JSONL"),
    (b"%PDF-", "a PDF; save its table as CSV"),
    (b"\x89PNG", "a picture"),
    (b"{\\rtf", "a text of RTF; save its table as CSV"),
)
_PAGE: Final = re.compile(rb"\s*<(?:!doctype|html|head|meta|body|table|tr|\?xml)[\s>]", re.IGNORECASE)
_HIGH: Final = re.compile(rb"[\x80-\xff]+")
_ASCII_LETTERS: Final = re.compile(rb"[A-Za-z]+")
_ODD: Final = re.compile(
    rb"[A-Za-z\x9a\x9e\xc0-\xff][\x80\x82-\x84\x86-\x89\x8b\x93-\x95\x98\x99\x9b\xa1-\xac\xae-\xb3\xb5\xb6\xb8-\xbf\xd7\xf7]+[a-z]"
    rb"|(?<![0-9])[\x80\x86\x87][a-z]|[\xbc-\xbe][a-z]{4}|[a-z]\xa7(?![A-Za-z0-9])|[\x88\x98\xa4]|(?<![A-Za-z0-9])[\xb2\xb3\xb9][a-z\xdf-\xff]"
    rb"|[a-z][\x8a\x8c\x8e\x9f\xc0-\xc3\xc5-\xc8\xca-\xd5\xd8-\xdb\xdd\xde][a-z]"
    rb"|[a-z][\x8a\x8c\x8e\x9f\xc0-\xd6\xd8-\xde](?![A-Za-z\x80-\xff])"
    rb"|[a-z\xc0-\xff](?:[\xb9\xbc-\xbe]|(?<!m)\xb3)|(?<![A-Za-z0-9])\xba[a-z]"
)
"""What is odd in Windows-1252 and shows that a byte is another code page's letter: a sign between letters,
one before a word or at its end that does not belong there, a capital within a word or at its end, and
signs that nobody writes."""
_LATIN_9: Final = bytes.maketrans(b"\xa4\xa6\xa8\xb4\xb8\xbc\xbd\xbe", b"\x80\x8a\x9a\x8e\x9e\x8c\x9c\x9f")
"""Where ISO-8859-15 differs from Windows-1252, that has the same character elsewhere."""
_CONTROLS: Final = re.compile(rb"[\x80-\x9f]")
_NO_TEXT: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_UNDEFINED: Final = re.compile(rb"[\x81\x8d\x8f\x90\x9d]|(?<![A-Za-z])\xff")
_LONGEST_RUN: Final = 3
_MOST_HIGH: Final = 0.3
_LATIN: Final = ("cp1252", "cp1250", "cp1254", "cp1257", "mac-roman", "cp850")
_OTHER_SCRIPTS: Final = (
    "cp1251", "koi8-r", "cp1253", "cp1255", "cp1256", "cp874", "cp932", "gb18030", "cp949", "cp950",
)  # fmt: skip
"""Offered where many letters are beyond ASCII."""
_ALIKE: Final = frozenset(_LATIN[:4])
_FEW: Final = 0.02
_SHOWN_BEFORE: Final = 20
_SHOWN: Final = 60


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
LATIN_9: Final = Encoding("iso8859-15", "ISO-8859-15")


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

    UTF-8 with a few bytes that are none counts as UTF-8: its bad lines get named.
    """
    with path.open("rb") as file:
        head = file.read(4096)
        for mark, codec, label in _MARKS:
            if head.startswith(mark):
                if not codec:
                    raise UnclearError(f"{name}: is {label}; name it with --encoding utf-32")
                return Encoding(codec, label)
        if b"\r" in head and b"\n" not in head and not any(b"\n" in piece for piece in _pieces(file)):
            raise UnclearError(f"{name}: its lines end with CR alone; turn them into LF first, as tr does")
        if (wide := _without_a_mark(head)) is not None:
            if wide.codec.startswith("utf-32"):
                raise UnclearError(f"{name}: is {wide.label}; name it with --encoding {wide.codec}")
            return wide
        file.seek(0)
        if _is_utf_8(file):
            return UTF_8
        file.seek(0)
        if _is_western(_whole_lines(file)):
            return WINDOWS_1252
        file.seek(0)
        if _is_western(_as_latin_9(file)):
            return LATIN_9
        file.seek(0)
        if _is_broken_utf_8(file):
            return UTF_8
        file.seek(0)
        raise _unclear(file, name)


def must_be_text_file(path: Path, name: str) -> None:
    """Raises UnclearError for what begins as other kinds of files do."""
    with path.open("rb") as file:
        head = file.read(4096)
    for mark, what in _OTHERS:
        if head.startswith(mark):
            raise UnclearError(f"{name}: is {what}")
    if _PAGE.match(head.removeprefix(codecs.BOM_UTF8)):
        raise UnclearError(f"{name}: is a page of HTML or XML; save its table as CSV")


def _unclear(file: BinaryIO, name: str) -> UnclearError:
    """An error that shows how a line reads in what it may be: the first one that tells them apart."""
    high = ((n, line) for n, line in enumerate(_lines(file), start=1) if _HIGH.search(line))
    first = next(high)
    number, line = next((each for each in chain([first], high) if _tells_apart(each[1])), first)
    wrong = next(_HIGH.finditer(line)).group()[0]
    return UnclearError(
        f"{name}: line {number} is not UTF-8 (byte 0x{wrong:02x}), and its bytes do not show what it is;"
        " --encoding says it, by the line below that reads right",
        tuple(f"--encoding {codec}: {text}" for text, codec in _readings(line).items()),
    )


def _lines(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.readline(PIECE), b"")


def _tells_apart(line: bytes) -> bool:
    """Whether the code pages that are most alike differ in it."""
    return len(_ALIKE.intersection(_readings(line).values())) > 1


def _readings(line: bytes) -> dict[str, str]:
    """How a part of a line reads in what it may be, each reading once."""
    found = next(_HIGH.finditer(line))
    part = line[max(0, found.start() - _SHOWN_BEFORE) :][:_SHOWN].strip()
    readings: dict[str, str] = {}
    for codec in _offered(part):
        with suppress(UnicodeDecodeError):
            # Incrementally, because the part may end within a character.
            text = codecs.getincrementaldecoder(codec)().decode(part)
            if not _NO_TEXT.search(text):
                readings.setdefault(text, codec)
    return readings


def _offered(part: bytes) -> tuple[str, ...]:
    runs = [len(run) for run in _HIGH.findall(part)]
    letters = sum(map(len, _ASCII_LETTERS.findall(part)))
    if sum(runs) > 2 * letters:
        return _OTHER_SCRIPTS
    return _LATIN + _OTHER_SCRIPTS if sum(runs) > letters or max(runs) >= _LONGEST_RUN else _LATIN


def _without_a_mark(head: bytes) -> Encoding | None:
    """UTF-16 when every other byte is zero where ASCII is, and hardly one of those between, UTF-32 when
    whole halves are."""
    if len(head) >= 8 and not any(head[2::4] + head[3::4]):
        return Encoding("utf-32-le", "UTF-32 without a byte order mark")
    if len(head) >= 8 and not any(head[0::4] + head[1::4]):
        return Encoding("utf-32-be", "UTF-32 without a byte order mark")
    pairs = len(head) // 2
    even, odd = head[0 : 2 * pairs : 2].count(0), head[1 : 2 * pairs : 2].count(0)
    if pairs >= 2 and even <= _FEW * pairs and _are_high_halves(odd, pairs, head, b"\n\0"):
        return Encoding("utf-16-le", "UTF-16 without a byte order mark")
    if pairs >= 2 and odd <= _FEW * pairs and _are_high_halves(even, pairs, head, b"\0\n"):
        return Encoding("utf-16-be", "UTF-16 without a byte order mark")
    return None


def _are_high_halves(zeros: int, pairs: int, head: bytes, newline: bytes) -> bool:
    """Whether so many zeros are the halves of ASCII: of a text in it, or of the ends of lines in another."""
    ends = head.count(b"\n")
    return zeros > 0.7 * pairs or (zeros > _FEW * pairs and 0 < ends < 2 * head.count(newline))


def _is_utf_8(file: BinaryIO) -> bool:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for piece in _pieces(file):
            decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    return iter(lambda: file.read(PIECE), b"")


def _is_western(pieces: Iterable[bytes]) -> bool:
    """Whether a file that is not UTF-8 reads as Windows-1252 and as nothing else.

    Not with a sequence of UTF-8 in it (a broken or mixed file), nor with long runs or many of the
    upper characters, nor with what is odd in it, nor with letters that are at home elsewhere.
    """
    high = letters = 0
    words = Letters()
    for piece in pieces:
        if _UNDEFINED.search(piece) or _ODD.search(piece):
            return False
        for found, count in Counter(_HIGH.findall(piece)).items():
            high += count * sum(byte >= 0xC0 for byte in found)
            if len(found) > _LONGEST_RUN or _holds_utf_8(found):
                return False
        letters += sum(map(piece.count, b"abcdefghijklmnopqrstuvwxyz"))
        words.add(piece)
    return high <= _MOST_HIGH * (high + letters) and words.are_western


def _holds_utf_8(run: bytes) -> bool:
    return _not_utf_8(run) < len(run)


def _not_utf_8(run: bytes) -> int:
    """How many of these bytes belong to no character of UTF-8."""
    return sum("\udc80" <= letter <= "\udcff" for letter in run.decode("utf-8", "surrogateescape"))


def _is_broken_utf_8(file: BinaryIO) -> bool:
    """Whether of the bytes beyond ASCII most are UTF-8. In the code pages of Asia some are, by chance."""
    good = bad = 0
    for piece in _whole_lines(file):
        for run, count in Counter(_HIGH.findall(piece)).items():
            wrong = _not_utf_8(run)
            good += count * (len(run) - wrong)
            bad += count * wrong
    return good > bad


def _as_latin_9(file: BinaryIO) -> Iterator[bytes]:
    """The pieces of a file with the euro sign of ISO-8859-15, as Windows-1252 would have them."""
    has_euro = False
    for piece in _whole_lines(file):
        has_euro = has_euro or b"\xa4" in piece
        yield b"\x81" if _CONTROLS.search(piece) else piece.translate(_LATIN_9)
    if not has_euro:
        yield b"\x81"


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Pieces that end between characters of ASCII, as far as that matters here."""
    while piece := file.read(PIECE):
        yield piece + file.readline(PIECE)
