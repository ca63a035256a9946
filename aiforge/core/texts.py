"""Texts as they can be sent and stored: plain, and of whole characters."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import AfterValidator

_LINE_ENDS: Final = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))
"""No line ends in JSON Lines or SSE, but many readers split lines there; JSON can say them in ASCII."""


def one_line(data: bytes) -> bytes:
    """JSON that is one line for every reader."""
    if not data.isascii():
        for raw, escaped in _LINE_ENDS:
            data = data.replace(raw, escaped)
    return data


def encodable(text: str) -> str:
    """The same characters as a plain `str`; half a surrogate pair becomes a question mark.

    A subclass of `str` passes every check for texts, and then msgspec does not know how to write it.
    """
    return str.encode(text, "utf-8", "replace").decode()


def words(error: BaseException) -> str:
    """What an error says; nothing, if it fails at that, too."""
    try:
        return encodable(str(error))
    except Exception:  # noqa: BLE001  # whatever `__str__` of somebody else's error does
        return ""


Encodable = Annotated[str, AfterValidator(encodable)]
"""A field that can always be written as JSON."""
