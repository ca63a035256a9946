"""What a user's message may be: text, or content parts in OpenAI's form.

One rule for the service, which stores it, and for its client, which names every bad line of a file
before it sends one.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

MAX_MESSAGE_BYTES: Final = 256 * 1024
"""The longest message, as JSON."""
MAX_DEPTH: Final = 16
"""How deep objects and lists may lie in each other, the list of parts counted."""


class ContentError(ValueError):
    """What is wrong with a message; `where` is the place in it, such as `[0].text`, empty for all of it."""

    def __init__(self, what: str, where: str = "") -> None:
        super().__init__(what)
        self.where = where


class _Text(Struct, tag_field="type", tag="text"):
    text: str


class _Address(Struct):
    url: str


class _Image(Struct, tag_field="type", tag="image_url"):
    image_url: _Address


class _Sound(Struct):
    data: str
    format: str


class _Audio(Struct, tag_field="type", tag="input_audio"):
    input_audio: _Sound


class _File(Struct, tag_field="type", tag="file"):
    file: dict[str, Any]


_TYPES: Final = "text, image_url, input_audio or file"


def check_content(message: object) -> None:
    """Raises ContentError unless a user can say this."""
    if isinstance(message, str):
        if not message.strip():
            raise ContentError("must not be empty")
    elif not isinstance(message, list) or not message:
        raise ContentError("must be a string or a list of parts with a type")
    elif is_deeper(message, MAX_DEPTH):
        raise ContentError(f"is nested more than {MAX_DEPTH} deep")
    try:
        size = len(msgspec.json.encode(message))
    except UnicodeEncodeError:
        raise ContentError("holds a lone surrogate, which is no character") from None
    if size > MAX_MESSAGE_BYTES:
        raise ContentError(f"is longer than {MAX_MESSAGE_BYTES} bytes")
    if isinstance(message, list):
        _check_parts(message)


def _check_parts(parts: list[object]) -> None:
    try:
        msgspec.convert(parts, list[_Text | _Image | _Audio | _File])
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$")
        if what.startswith("Invalid value"):
            what += f", must be {_TYPES}"
        raise ContentError(what[:1].lower() + what[1:], where.rstrip("`")) from None


def is_deeper(value: object, levels: int) -> bool:
    """Whether objects and lists lie deeper in each other than this; itself it goes no deeper."""
    if not isinstance(value, dict | list):
        return False
    inside = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(is_deeper(each, levels - 1) for each in inside)
