"""What can be wrong with a file of questions.

QuestionsError
├── UnclearError    the file has no one obvious reading; the message names the option that decides
└── BadLinesError   lines that cannot be asked, each with its number
"""

from __future__ import annotations

from typing import Final

SHOWN: Final = 1000
"""How many bad lines are named; the others are counted."""


class QuestionsError(Exception):
    """The file cannot be used; nothing was done with it. `details` are lines to show below the message."""

    def __init__(self, message: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.details = details


class UnclearError(QuestionsError):
    """The file has no one obvious reading."""


class BadLinesError(QuestionsError):
    """Lines that cannot be asked."""


class BadRow(Exception):
    """What is wrong with one line; collected, never shown alone."""


class Problems:
    """The bad lines of one file, named up to a limit and counted beyond it, and how many are comments or its
    header again."""

    def __init__(self) -> None:
        self.count = self.comments = self.headers = 0
        self._named: list[tuple[int, str]] = []

    def add(self, line: int, what: str) -> None:
        self.count += 1
        if len(self._named) < SHOWN:
            self._named.append((line, what))

    def error(self, name: str) -> BadLinesError:
        lines = [f"line {line} {what}" for line, what in sorted(self._named)]
        if self.count > len(lines):
            lines.append(f"and {self.count - len(lines)} more")
        count = "1 line is" if self.count == 1 else f"{self.count} lines are"
        return BadLinesError(f"{name}: {count} wrong, so nothing was sent", tuple(lines))
