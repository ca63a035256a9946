"""The options that the programs of `COMMANDS`' default may have.

A list of what is allowed, because what is forbidden has too many names: abbreviations, letters in one
word, and whatever the next version adds. Left out is what follows links (`grep -R`, `ls -L`), what reads
the names of files from a file (`wc --files0-from`) and what never ends (`tail -f`).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec


class Options(msgspec.Struct, frozen=True):
    """Letters without and with an argument, and long names in full."""

    letters: str
    with_argument: str
    names: frozenset[str]
    always: tuple[str, ...] = ()
    """What the program is told before everything else."""

    def allows(self, word: str) -> bool:
        """`word` is one that begins with `-`; a lone `-` is no option."""
        if word.startswith("--"):
            return word[2:].partition("=")[0] in self.names
        letters = f"[{self.letters}]*" + (f"([{self.with_argument}].*)?" if self.with_argument else "")
        return re.fullmatch(letters, word[1:], re.DOTALL) is not None


_ENDS: Final = frozenset({"bytes", "lines", "quiet", "silent", "verbose", "zero-terminated"})

OPTIONS: Final = {
    "cat": Options(
        "AbeEnstTuv",
        "",
        frozenset({"number", "number-nonblank", "show-all", "show-ends", "show-tabs", "squeeze-blank"}),
    ),
    "cut": Options(
        "sz",
        "bcdf",
        frozenset(
            {"bytes", "characters", "complement", "delimiter", "fields", "only-delimited", "output-delimiter"}
        ),
    ),
    # By itself diff follows every link that it finds in a folder.
    "diff": Options(
        "abBcdEiNpqrstuwy0-9",
        "CIUWx",
        frozenset(
            {"brief", "context", "exclude", "ignore-all-space", "ignore-blank-lines", "ignore-case"}
            | {"ignore-space-change", "minimal", "new-file", "recursive", "report-identical-files"}
            | {"side-by-side", "text", "unified", "width"}
        ),
        always=("--no-dereference",),
    ),
    "grep": Options(
        "abcEFGhHiIlLnoPqrsvwxyzZ0-9",
        "ABCefm",
        frozenset(
            {"after-context", "before-context", "byte-offset", "context", "count", "exclude", "exclude-dir"}
            | {"extended-regexp", "file", "files-with-matches", "files-without-match", "fixed-strings"}
            | {"ignore-case", "include", "invert-match", "line-number", "line-regexp", "max-count"}
            | {"no-filename", "no-messages", "null", "only-matching", "perl-regexp", "quiet", "recursive"}
            | {"regexp", "silent", "text", "with-filename", "word-regexp"}
        ),
    ),
    "head": Options("qvz0-9", "cn", _ENDS),
    "ls": Options(
        "1aABcCdfFgGhiklmnNopqQrRsStuUvxX",
        "ITw",
        frozenset(
            {"all", "almost-all", "classify", "directory", "file-type", "format", "full-time"}
            | {"group-directories-first", "hide", "human-readable", "ignore", "inode", "recursive"}
            | {"reverse", "size", "sort", "time", "time-style", "width"}
        ),
    ),
    "tail": Options("qvz0-9", "cn", _ENDS),
    "wc": Options("clLmw", "", frozenset({"bytes", "chars", "lines", "max-line-length", "words"})),
}
