"""Server-sent events from raw bytes.

Text helpers are of no use here: `str.splitlines` and what is built on it also split at U+0085 and
U+2028, which stand raw inside JSON, and decoding before splitting breaks characters in two. Lines
end at CR, LF or CRLF and at nothing else, so they are cut as bytes.
"""

from __future__ import annotations

from typing import Final

MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
"""A single event larger than this is not an answer any more."""

_BOM: Final = b"\xef\xbb\xbf"


class EventTooLargeError(ValueError):
    """One event grew past `MAX_EVENT_BYTES`."""


class EventReader:
    """Gives the data of each event, whichever way the bytes were cut on their way."""

    __slots__ = ("_after_cr", "_data", "_first", "_rest", "_size")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._first = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that `chunk` completes."""
        if self._first or self._after_cr or b"\r" in chunk:
            chunk = self._plain(chunk)
        lines = (self._rest + chunk if self._rest else chunk).split(b"\n")
        self._rest = lines.pop()
        events: list[bytes] = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(self._take())
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
                self._size += len(line)
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLargeError(f"one event of the stream is larger than {MAX_EVENT_BYTES} bytes")
        return events

    def close(self) -> list[bytes]:
        """The last event of a stream that ended without an empty line."""
        events = self.feed(b"\n") if self._rest else []
        if self._data:
            events.append(self._take())
        return events

    def _take(self) -> bytes:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        return data

    def _plain(self, chunk: bytes) -> bytes:
        """`chunk` with LF as the only line end, and without a byte order mark at the very start."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return chunk
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._first:
            chunk, self._rest = self._rest + chunk, b""
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                return chunk
            self._first = False
            chunk = chunk.removeprefix(_BOM)
        return chunk
