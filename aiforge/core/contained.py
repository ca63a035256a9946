"""Code of others: a hook, a dispatcher or a tool may end itself, but not the loop that runs all turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def contained(what: str) -> Iterator[None]:
    """In this block `sys.exit` and KeyboardInterrupt are a RuntimeError, which is handled like any other.

    asyncio lets both out of the loop, past everything that could tell whose they are. In the main
    thread KeyboardInterrupt passes: it may be a Ctrl-C that has only struck here.
    """
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"{what} tried to end the process") from error
    except KeyboardInterrupt as error:
        if threading.current_thread() is threading.main_thread():
            raise
        raise RuntimeError(f"{what} raised KeyboardInterrupt") from error
