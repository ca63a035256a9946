"""How a command ends badly: one line on stderr and an exit code.

CommandError            exit 1: it did not work
├── UsageError          exit 2: the command line asks for something that does not fit
├── SetupError          exit 3: a setting or this machine is not as it must be
└── Asked               exit 4: the turn waits for somebody's answer
"""

from __future__ import annotations

from typing import ClassVar, Final

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_CONFIG: Final = 3
EXIT_ASKED: Final = 4
EXIT_INTERRUPTED: Final = 130


class CommandError(Exception):
    """The command did not work; the message is for people. `details` are lines to show below it."""

    exit_code: ClassVar[int] = EXIT_FAILED

    def __init__(self, message: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.details = details


class UsageError(CommandError):
    """The command line asks for something that does not fit."""

    exit_code = EXIT_USAGE


class SetupError(CommandError):
    """A setting or this machine is not as it must be."""

    exit_code = EXIT_CONFIG
