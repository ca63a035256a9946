"""What a command shows: data on stdout, everything else on stderr."""

from __future__ import annotations

import functools
import re
import shutil
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from aiforge.questions import jsonl

_GAP: Final = "  "
_ESCAPES: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@functools.cache
def screen() -> Console:
    """Stderr: styled on a terminal, plain elsewhere."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def note(text: str, style: str = "dim") -> None:
    """Say what happens."""
    screen().print(Text(_harmless(text), style=style))


def problem(message: str, details: tuple[str, ...] = ()) -> None:
    """Say in one line what is wrong; further lines of the message and `details` are quoted below it."""
    first, *more = message.split("\n")
    screen().print(Text.assemble(("aiforge: ", "bold red"), _harmless(first)))
    for line in (*more, *details):
        screen().print(Text(_harmless(f"  {line}"), style="dim"))


def _harmless(text: str) -> str:
    """With control characters of a file or a service as they are written, because a terminal obeys them."""
    return _ESCAPES.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def data(text: str, end: str = "\n") -> None:
    """Write to stdout at once; control characters reach no terminal."""
    if sys.stdout.isatty():
        text = _ESCAPES.sub("", text)
    sys.stdout.write(text + end)
    sys.stdout.flush()


def listed(lines: Iterable[str], none: str) -> None:
    """Each line to stdout as it comes; where there are none, say so on stderr."""
    some = False
    for line in lines:
        data(line)
        some = True
    if not some:
        note(none)


def told(parts: Iterable[str]) -> str:
    """What is said of one thing as a line of stdout; where a terminal is too narrow, whole parts go below."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return folded(parts, width)


def folded(parts: Iterable[str], width: int | None) -> str:
    """The parts in as few lines of this width as hold them whole, those after the first with a margin."""
    lines: list[str] = []
    for part in parts:
        if lines and (width is None or cell_len(lines[-1]) + len(_GAP) + cell_len(part) <= width):
            lines[-1] += _GAP + part
        else:
            lines.append(_GAP + part if lines else part)
    return "\n".join(lines)


def as_json(value: object) -> str:
    """One line of JSON that every reader takes for one line."""
    return jsonl.as_json(value)


def when(seconds: float | None) -> str:
    """Unix seconds as local time to the second; `–` where it is not known."""
    return "–" if seconds is None else datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


def clock(seconds: float | None) -> str:
    """Unix seconds as local time in few characters: the minute of today, else the day; `–` if not known."""
    if seconds is None:
        return "–"
    moment = datetime.fromtimestamp(seconds).astimezone()
    is_today = moment.date() == datetime.now().astimezone().date()
    return f"{moment:%H:%M}" if is_today else f"{moment:%b %d}"


def duration(seconds: float) -> str:
    """`0.8 s`, `12 s`, `3:05`, `1:02:03`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
