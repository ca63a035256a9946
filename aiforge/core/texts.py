"""Texts as they can be sent and stored: plain, and of whole characters."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


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
