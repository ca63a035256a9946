"""One HTTP exchange written straight to its transport.

aiohttp reads and parses the requests; its response objects cost more than all the rest of a small
answer and cannot break a connection in the middle of a chunk, so the answers are written here.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from aiforge.testing.script import CutKind

_REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
_PIECE_GAP: Final = 0.001
"""Seconds between the pieces of a split stream, so that they do not arrive as one."""


class Written(web.StreamResponse):
    """Tells aiohttp that the response is on the wire already."""

    def __init__(self, *, keep_alive: bool) -> None:
        super().__init__()
        self._keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


class Exchange:
    """The answering half of one request.

    The last bytes, and a drop, wait for `complete`: whoever has read an answer to its end finds the call
    finished in the log.
    """

    __slots__ = ("_buffer", "_dropped", "_offset", "_transport", "cuts", "keep_alive", "piece")

    def __init__(self, transport: asyncio.Transport, *, keep_alive: bool) -> None:
        self._transport = transport
        self._buffer: list[bytes] = []
        self._offset = 0
        self._dropped: CutKind | None = None
        self.keep_alive = keep_alive
        self.piece: int | None = None
        self.cuts: frozenset[int] = frozenset()

    def send(self, status: int, body: bytes, headers: Mapping[str, str], *, part: float = 1.0) -> None:
        """A whole response, or the head and that part of its body."""
        head = self._head(status, "application/json", headers, b"content-length: %d\r\n" % len(body))
        self._buffer.append(head + (body if part == 1.0 else body[: int(len(body) * part)]))

    def open_stream(self, headers: Mapping[str, str]) -> None:
        """The head of a stream; it goes out with the first chunk or flush."""
        extra = b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n"
        head = self._head(200, "text/event-stream; charset=utf-8", headers, extra)
        if self.piece or self.cuts:
            self._transport.write(head)
        else:
            self._buffer.append(head)

    def put(self, events: bytes) -> None:
        """Bytes of the stream that go out with the next flush."""
        self._buffer.append(b"%x\r\n%b\r\n" % (len(events), events))

    def flush(self) -> None:
        if self._buffer:
            self._transport.write(b"".join(self._buffer))
            self._buffer.clear()

    async def put_pieces(self, events: bytes) -> None:
        """Bytes of the stream, each piece in a packet of its own as far as TCP allows."""
        start, end = self._offset, self._offset + len(events)
        edges = {at for at in self.cuts if start < at <= end}
        if self.piece:
            edges |= set(range(start - start % self.piece + self.piece, end + 1, self.piece))
        for edge in sorted(edges):
            self.put(events[self._offset - start : edge - start])
            self.flush()
            self._offset = edge
            await asyncio.sleep(_PIECE_GAP)
        if self._offset < end:
            self.put(events[self._offset - start :])
            self._offset = end

    def close_stream(self) -> None:
        """The proper end of the HTTP body."""
        self._buffer.append(b"0\r\n\r\n")

    def drop(self, how: CutKind) -> None:
        """Break the connection, or with `end` only the answer."""
        if how == "end":
            self.close_stream()
            return
        self._dropped = how
        self.keep_alive = False

    def complete(self) -> None:
        """Send what is left, and drop the connection if that was asked."""
        self.flush()
        if self._dropped is None:
            return
        if self._dropped == "close":
            self._transport.close()
            return
        connection = self._transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _head(self, status: int, content_type: str, headers: Mapping[str, str], extra: bytes) -> bytes:
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b"Unknown")), extra]
        own = {name.lower(): value for name, value in headers.items()}
        lines.extend(b"%b: %b\r\n" % (k.encode(), v.encode("latin-1")) for k, v in own.items())
        if "content-type" not in own:
            lines.append(b"content-type: %b\r\n" % content_type.encode())
        lines.append(b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n")
        return b"".join(lines)
