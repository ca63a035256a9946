"""Tools of one's own, as somebody would write them for their shop."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from langchain_core.tools import tool


@tool
def refund(order: str) -> str:
    """Pay an order back."""
    _note(f"refund {order}")
    return f"{order} was paid back"


@tool
def look_up(order: str) -> str:
    """Look an order up."""
    _note(f"look up {order}")
    return f"{order} is on its way"


def _note(line: str) -> None:
    """What was really done, in a file that the test can read."""
    with _workspace().open("a") as notes:
        notes.write(line + "\n")


def _workspace() -> Path:
    return Path(os.environ["AIFORGE_WORKSPACE"], "done.txt")


@tool
def ship(order: str) -> str:
    """Send an order out; the process does not survive it the first time."""
    return _once(f"ship {order}")


@tool
def stamp(order: str) -> str:
    """Stamp an order, which may be done twice; the process does not survive it the first time."""
    return _once(f"stamp {order}")


def _once(line: str) -> str:
    again = line in _workspace().read_text()
    _note(line)
    if not again:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{line}: done"


refund.metadata = {"approval": True}
stamp.metadata = {"idempotent": True}
tools = [refund, look_up, ship, stamp]
