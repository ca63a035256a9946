"""Work that was in three crashes runs alone among its kind: one suspect a process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class SuspectSlot:
    """The one place for a suspect; lives on the loop that runs the turns."""

    def __init__(self) -> None:
        self.busy = False

    @contextmanager
    def taken(self, suspect: bool) -> Iterator[bool]:
        """Yields whether the work may run: always, unless it is a suspect and another one runs."""
        if not suspect:
            yield True
        elif self.busy:
            yield False
        else:
            self.busy = True
            try:
                yield True
            finally:
                self.busy = False
