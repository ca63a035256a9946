"""Characters that a provider cut in two.

JSON can write one character outside the basic plane as two escapes, and some servers send each of them
in a chunk of its own. Such a chunk is no text by itself: its half waits for the other one.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from aiforge.core.texts import encodable

_STREAMED: Final = frozenset({"content", "text", "refusal", "arguments"})
"""Fields whose text goes on in the next chunk."""
_ESCAPES: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""Escapes of JSON, one after the other; the group is half a character without its other half."""


def whole(reply: bytes) -> bytes:
    """A reply as it came, but that what is no character in it becomes U+FFFD: bytes that are no UTF-8, or
    half of one where the answer had to end."""
    if not reply.isascii():
        reply = reply.decode("utf-8", "replace").encode()
    if b"\\ud" not in reply.lower():
        return reply
    return _ESCAPES.sub(lambda found: b"\\ufffd" if found[1] else found[0], reply)


def decode(event: bytes) -> Any | None:
    """The event as plain values, with halves only where text goes on; None when it holds none, or no JSON."""
    if b"\\ud" not in event.lower():
        return None
    try:
        return _mended(json.loads(event), streamed=True)
    except (ValueError, RecursionError):
        return None


def _mended(value: Any, *, streamed: bool) -> Any:
    match value:
        case str():
            return encodable(value)
        case list():
            return [_mended(each, streamed=streamed) for each in value]
        case dict():
            return {
                encodable(key): each
                if streamed and key in _STREAMED and isinstance(each, str)
                else _mended(each, streamed=streamed and key != "arguments")
                for key, each in value.items()
            }
        case _:
            return value


class Halves:
    """What waits for its other half, for each text that is under way."""

    def __init__(self) -> None:
        self._waiting: dict[object, str] = {}

    def join(self, key: object, text: str) -> str:
        """This piece with the half that waited for it, without the half that has to wait now."""
        text = self._waiting.pop(key, "") + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._waiting[key], text = text[-1], text[:-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def rest(self, key: object) -> str:
        """What stands for a half whose other one never came."""
        return "\ufffd" if self._waiting.pop(key, "") else ""
