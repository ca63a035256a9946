"""Uploads: a form with one file is read as it arrives, so that a file of any length takes little memory."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from api.errors import Problem

FORM_BYTES: Final = 64 * 1024
"""What a form may hold beside its file."""
_FILE: Final = "file"
_LONGEST_FIELD: Final = 1024
_MOST_FIELDS: Final = 16


class Sink(Protocol):
    """Where the bytes of a form's file go."""

    async def begin(self, filename: str) -> None: ...
    async def write(self, data: bytes) -> None: ...


class _Heard(NamedTuple):
    """What a piece of the body told: a part begins (its headers), or goes on (its bytes)."""

    headers: dict[bytes, bytes] | None = None
    data: bytes = b""


async def receive(request: Request, sink: Sink) -> dict[str, str]:
    """Pass the part `file` on as it comes; returns the form's other fields. Raises Problem."""
    form = _Form(request.headers.get("content-type", ""))
    fields: dict[str, bytearray] = {}
    name, seen = "", set[str]()
    async for chunk in request.stream():
        for heard in form.feed(chunk):
            if heard.headers is not None:
                name, filename = _names(heard.headers)
                if name in seen or len(seen) == _MOST_FIELDS:
                    raise _bad(f"{name}: stands here twice" if name in seen else "too many fields", name)
                seen.add(name)
                if name == _FILE:
                    await sink.begin(filename)
            elif name == _FILE:
                await sink.write(heard.data)
            elif len(fields.setdefault(name, bytearray()) + heard.data) > _LONGEST_FIELD:
                raise _bad(f"{name}: is too long", name)
            else:
                fields[name] += heard.data
    if not form.whole:
        raise _bad("the form ends before its end")
    if _FILE not in seen:
        raise Problem(400, "missing_field", "file: this field is required", param=_FILE)
    return {name: value.decode("utf-8", "replace") for name, value in fields.items()}


class _Form:
    """A multipart form, as far as it has come."""

    def __init__(self, content_type: str) -> None:
        _, options = parse_options_header(content_type)
        if not options.get(b"boundary"):
            raise _bad("Content-Type names no boundary")
        self.whole = False
        self._heard: list[_Heard] = []
        self._headers: dict[bytes, bytes] = {}
        self._name, self._value = bytearray(), bytearray()
        callbacks: Any = {
            "on_part_begin": self._part_begins,
            "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._header_ends,
            "on_headers_finished": lambda: self._heard.append(_Heard(headers=self._headers)),
            "on_part_data": lambda data, start, end: self._heard.append(_Heard(data=data[start:end])),
            "on_end": self._ends,
        }
        try:
            self._parser = MultipartParser(options[b"boundary"], callbacks)
        except FormParserError as error:
            raise _bad(f"Content-Type: {error}") from None

    def feed(self, chunk: bytes) -> list[_Heard]:
        """What a further piece of the body tells."""
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _bad(f"the form cannot be read: {error}") from None
        heard, self._heard = self._heard, []
        return heard

    def _part_begins(self) -> None:
        self._headers = {}

    def _header_ends(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _ends(self) -> None:
        self.whole = True


def _names(headers: dict[bytes, bytes]) -> tuple[str, str]:
    """A part's name and its file's name."""
    _, options = parse_options_header(headers.get(b"content-disposition"))
    name, filename = (options.get(key, b"").decode("utf-8", "replace") for key in (b"name", b"filename"))
    if not name:
        raise _bad("a part of the form has no name")
    return name, filename


def _bad(message: str, param: str | None = None) -> Problem:
    return Problem(400, "invalid_value" if param else "invalid_form", message, param=param)
