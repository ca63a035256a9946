"""What SIGINT, SIGTERM and SIGHUP do to a command: the first ends it, a second one hurries its end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """Somebody asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        return 128 + self.number


def listen() -> None:
    """From now on an ending signal raises Ended in the main thread.

    A hang-up stays ignored where it was (nohup); an interrupt does not, so that a stack that a
    script left in the background can be ended by one.
    """
    for number in ENDING:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    raise Ended(number)


class Hurry:
    """Becomes true when another ending signal comes."""

    def __init__(self) -> None:
        self.number: int | None = None

    def __call__(self) -> bool:
        return self.number is not None

    def ask(self, number: int, frame: FrameType | None) -> None:
        self.number = number


@contextmanager
def undisturbed() -> Iterator[Hurry]:
    """A block that ending signals do not break off: cleaning up."""
    hurry = Hurry()
    before = {number: signal.signal(number, hurry.ask) for number in ENDING}
    try:
        yield hurry
    finally:
        for number, action in before.items():
            signal.signal(number, action)


@contextmanager
def deferred() -> Iterator[None]:
    """A short block after which an ending signal takes effect: starting a process and noting that."""
    with undisturbed() as hurry:
        yield
    if hurry.number is not None:
        raise Ended(hurry.number)
