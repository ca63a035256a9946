"""search_documents: the passages of one's own documents that fit a question, found by their words.

The documents are text, Markdown and PDF files below the folder `RAG_FOLDER`. They are read when they are
first searched, and again when they have changed. Passages are ranked with BM25 (Robertson and Zaragoza,
"The Probabilistic Relevance Framework: BM25 and Beyond", 2009), so a passage is found when it has words
of the question, and not for its meaning alone.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aiforge.core.settings import AIForgeSettings
from aiforge.tools.files import pdf_pages
from aiforge.tools.tool import ShippedTool, SlowTool, parameters
from aiforge.tools.workspace import Workspace

SUFFIXES: Final = frozenset({".txt", ".md", ".markdown", ".rst", ".pdf"})
MOST_FILES: Final = 10_000
MOST_PASSAGES: Final = 20
"""Passages of one result."""
LONGEST_PASSAGE: Final = 1_500
"""Characters; a longer paragraph becomes several passages."""
MOST_NAMED: Final = 5
"""Files that a result names when they could not be read."""

_K1: Final = 1.5
"""How much it counts that a word stands in a passage again and again."""
_B: Final = 0.75
"""How much it counts against a passage that it is long."""
_WORD: Final = re.compile(r"[぀-ヿ㐀-䶿一-鿿]|[^\W぀-ヿ㐀-䶿一-鿿]+")
"""Chinese and Japanese have no blanks between words, so each character stands for itself."""


def tools(settings: AIForgeSettings) -> tuple[ShippedTool, ...]:
    """The tool over the folder `RAG_FOLDER`."""
    assert settings.RAG_FOLDER is not None
    documents = _documents(settings.RAG_FOLDER.expanduser().absolute())
    return (
        SlowTool(
            "search_documents",
            "Search the documents of this installation. Passages are found by the words that they share "
            "with the query.",
            parameters(
                ["query"],
                query={"type": "string", "description": "words that the passage is likely to have"},
                count={
                    "type": "integer",
                    "description": f"how many to find, to {MOST_PASSAGES}; 5 if left out",
                },
            ),
            documents.search,
        ),
    )


class _Version(NamedTuple):
    """What tells whether a file has changed."""

    size: int
    changed: int


class _Passage(NamedTuple):
    source: str
    """Such as `handbook.md, line 12`."""
    text: str
    words: Counter[str]


class Documents:
    """The documents below a folder, ready to be searched from several threads. No link is followed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._guard = threading.Lock()
        self._read: dict[str, tuple[_Version, list[_Passage] | None]] = {}
        """By path; None for a file that cannot be read."""
        self._ranking = _Ranking([])

    def search(self, query: str, count: int = 5) -> str:
        """Raises ValueError with a text for the model."""
        if not 1 <= count <= MOST_PASSAGES:
            raise ValueError(f"count must be from 1 to {MOST_PASSAGES}")
        words = _words(query)
        if not words:
            raise ValueError("the query has no words")
        with self._guard:
            left_out = self._refresh()
            ranking = self._ranking
            unread = sorted(path for path, (_, passages) in self._read.items() if passages is None)
        found = ranking.best(words, count)
        texts = [f"[{n}] {passage.source}\n{passage.text}" for n, passage in enumerate(found, 1)]
        return "\n\n".join([*(texts or ["nothing found"]), *_gaps(unread, left_out)])

    def _refresh(self) -> int:
        """Read what is new or has changed; how many files are too many."""
        files = list(self._files())
        now = dict(files[:MOST_FILES])
        changed = [path for path, version in now.items() if self._version(path) != version]
        gone = self._read.keys() - now.keys()
        for path in gone:
            del self._read[path]
        for path in changed:
            self._read[path] = now[path], self._passages(path)
        if changed or gone:
            self._ranking = _Ranking([p for path in now for p in self._read[path][1] or ()])
        return len(files) - len(now)

    def _version(self, path: str) -> _Version | None:
        known = self._read.get(path)
        return None if known is None else known[0]

    def _files(self) -> Iterator[tuple[str, _Version]]:
        if not self._folder.is_dir():
            raise ValueError("the folder of documents is not there")
        for folder, folders, names in os.walk(self._folder):
            folders.sort()
            for path in (Path(folder, name) for name in sorted(names)):
                if path.suffix.lower() not in SUFFIXES or path.is_symlink():
                    continue
                with contextlib.suppress(OSError):  # it has gone since
                    found = path.stat()
                    yield (
                        path.relative_to(self._folder).as_posix(),
                        _Version(found.st_size, found.st_mtime_ns),
                    )

    def _passages(self, path: str) -> list[_Passage] | None:
        try:
            data = Workspace(self._folder).read(path)
            if data.startswith(b"%PDF-"):
                pages = enumerate(pdf_pages(data, path), 1)
                return [
                    _passage(f"{path}, page {page}", part) for page, text in pages for _, part in parts(text)
                ]
            return [_passage(f"{path}, line {line}", part) for line, part in parts(data.decode())]
        except ValueError:
            return None


class _Ranking:
    """BM25 over passages."""

    def __init__(self, passages: Sequence[_Passage]) -> None:
        self._passages = passages
        self._lengths = [passage.words.total() for passage in passages]
        self._average = sum(self._lengths) / len(passages) if passages else 0.0
        self._places: dict[str, list[int]] = {}
        for number, passage in enumerate(passages):
            for word in passage.words:
                self._places.setdefault(word, []).append(number)

    def best(self, words: Sequence[str], count: int) -> list[_Passage]:
        """The passages that fit best, the best one first; only such that have one of the words."""
        scores: dict[int, float] = {}
        for word in dict.fromkeys(words):
            places = self._places.get(word, ())
            rarity = math.log(1 + (len(self._passages) - len(places) + 0.5) / (len(places) + 0.5))
            for number in places:
                often = self._passages[number].words[word]
                length = 1 - _B + _B * self._lengths[number] / self._average
                gain = rarity * often * (_K1 + 1) / (often + _K1 * length)
                scores[number] = scores.get(number, 0.0) + gain
        ranked = sorted(scores, key=lambda number: (-scores[number], number))
        return [self._passages[number] for number in ranked[:count]]


def parts(text: str) -> Iterator[tuple[int, str]]:
    """A text in passages, each with the number of its first line.

    One ends before a heading, at the end of a paragraph when it is half full, and where it is full.
    """
    begins, kept = 1, ""
    for number, line in enumerate(text.splitlines(), 1):
        over = len(kept) + len(line) > LONGEST_PASSAGE
        ended = len(kept) > LONGEST_PASSAGE // 2 and not line.strip()
        headed = line.startswith("#") and not kept.strip().rpartition("\n")[2].startswith("#")
        if kept.strip() and (over or ended or headed):
            yield begins, kept.strip()
            kept = ""
        if not kept.strip():
            begins, kept = number, ""
        rest = line
        while len(rest) > LONGEST_PASSAGE:
            yield number, rest[:LONGEST_PASSAGE]
            rest = rest[LONGEST_PASSAGE:]
        kept += f"\n{rest}" if rest.strip() or not kept.endswith("\n") else ""
    if kept.strip():
        yield begins, kept.strip()


def _passage(source: str, text: str) -> _Passage:
    return _Passage(source, text, Counter(_words(text)))


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _gaps(unread: Sequence[str], left_out: int) -> Iterator[str]:
    """What the answer does not cover."""
    if unread:
        named = ", ".join(unread[:MOST_NAMED])
        more = f" and {len(unread) - MOST_NAMED} more" if len(unread) > MOST_NAMED else ""
        yield f"(not readable: {named}{more})"
    if left_out:
        yield f"(only the first {MOST_FILES} files are searched; {left_out} are not)"


@functools.lru_cache(maxsize=16)
def _documents(folder: Path) -> Documents:
    """One reading of a folder for all turns of the process."""
    return Documents(folder)
