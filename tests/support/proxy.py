"""A TCP proxy before a Redis server that loses replies and messages on purpose."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

Fate = Literal["pass", "drop", "cut"]
"""What becomes of a reply: it is passed on, swallowed, or the connection is cut in its place."""


class Proxy:
    """Shows every whole reply of the server to `fate` before it is passed on.

    async with Proxy(server.port) as proxy:
        proxy.fate = lambda frame: "drop" if is_message(frame) else "pass"
    """

    def __init__(self, port: int) -> None:
        self._behind = port
        self._listener: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.fate: Callable[[bytes], Fate] = lambda _frame: "pass"

    @property
    def url(self) -> str:
        assert self._listener is not None
        return f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}/0"

    async def __aenter__(self) -> Proxy:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        for writer in list(self._open):
            writer.close()
        await self._listener.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(OSError):
            behind, server = await asyncio.open_connection("127.0.0.1", self._behind)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, server))
                    both.create_task(self._sift(behind, writer, server))
            finally:
                server.close()
        writer.close()
        self._open.discard(writer)

    async def _sift(
        self, behind: asyncio.StreamReader, writer: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            async for frame in frames(behind):
                fate = self.fate(frame)
                if fate == "cut":
                    break
                if fate == "pass":
                    writer.write(frame)
                    await writer.drain()
        writer.close()
        server.close()


def is_message(frame: bytes) -> bool:
    """Whether a frame is what a subscriber is sent for a PUBLISH."""
    return frame[:1] in b"*>" and frame.split(b"\r\n", 3)[1:3] == [b"$7", b"message"]


async def frames(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The whole RESP values of a stream, to its end."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            yield await _frame(stream)


async def _frame(stream: asyncio.StreamReader) -> bytes:
    line = await stream.readuntil(b"\r\n")
    kind, count = line[:1], line[1:-2]
    if kind in b"$=!" and count != b"-1":
        return line + await stream.readexactly(int(count) + 2)
    parts = [line]
    if kind in b"*>~%" and count != b"-1":
        parts += [await _frame(stream) for _ in range(int(count) * (2 if kind == b"%" else 1))]
    return b"".join(parts)


async def _copy(reader: asyncio.StreamReader, writer: Any) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
