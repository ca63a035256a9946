"""TCP proxies for faults of the network: silence, resets, a slow line, and replies of Redis that get lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

Fate = Literal["pass", "drop", "cut"]
"""What becomes of a reply: it is passed on, swallowed, or the connection is cut in its place."""

_CHUNK: Final = 65_536
_DRIPS_A_SECOND: Final = 20


@dataclass(eq=False)
class Wire:
    """One client's connection and the one that was opened to the server for it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    behind: asyncio.StreamReader
    server: asyncio.StreamWriter


class Relay:
    """Passes the bytes of any protocol on, both ways.

    async with Relay(server.port) as relay:
        relay.blackhole()   # whatever is sent stays here, connections stay open, until `heal`
        relay.drip(2_000)   # so many bytes a second, each way of each connection, until `heal`
        relay.reset()       # every open connection ends in a RST, at both ends
    """

    def __init__(self, port: int) -> None:
        """`port` is where the server listens, on this machine."""
        self._behind = port
        self._listener: asyncio.Server | None = None
        self._wires: set[Wire] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._pace: float | None = None

    @property
    def port(self) -> int:
        assert self._listener is not None
        return int(self._listener.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._wires)

    def blackhole(self) -> None:
        self._flows.clear()

    def drip(self, bytes_a_second: float) -> None:
        self._pace = bytes_a_second

    def heal(self) -> None:
        self._pace = None
        self._flows.set()

    def reset(self) -> None:
        for wire in self._wires:
            for writer in (wire.writer, wire.server):
                sock = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)
        await self._listener.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._connected(
                    Wire(reader, writer, *await asyncio.open_connection("127.0.0.1", self._behind))
                )
        finally:
            writer.close()
            self._serving.discard(serving)

    async def _connected(self, wire: Wire) -> None:
        self._wires.add(wire)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._ends(wire, self._up(wire)))
                both.create_task(self._ends(wire, self._down(wire)))
        finally:
            self._wires.discard(wire)
            wire.server.close()

    async def _ends(self, wire: Wire, way: Coroutine[Any, Any, None]) -> None:
        """When one way has ended, the connection has."""
        with contextlib.suppress(OSError):
            await way
        wire.writer.close()
        wire.server.close()

    async def _up(self, wire: Wire) -> None:
        while data := await wire.reader.read(_CHUNK):
            await self._send(wire.server, data)

    async def _down(self, wire: Wire) -> None:
        while data := await wire.behind.read(_CHUNK):
            await self._send(wire.writer, data)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        await self._flows.wait()
        while data and (pace := self._pace) is not None:
            size = max(1, int(pace / _DRIPS_A_SECOND))
            writer.write(data[:size])
            data = data[size:]
            await writer.drain()
            await asyncio.sleep(1 / _DRIPS_A_SECOND)
        writer.write(data)
        await writer.drain()


class Proxy(Relay):
    """Stands before a Redis server and shows every whole reply to `fate` before it is passed on.

    async with Proxy(server.port) as proxy:
        proxy.fate = lambda frame: "drop" if is_message(frame) else "pass"
        proxy.fate = nth(7, "drop")
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.fate: Callable[[bytes], Fate] = _pass

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def heal(self) -> None:
        super().heal()
        self.fate = _pass

    async def _down(self, wire: Wire) -> None:
        async for frame in frames(wire.behind):
            fate = self._judge(wire, frame)
            if fate == "cut":
                return
            if fate == "pass":
                await self._send(wire.writer, frame)

    def _judge(self, wire: Wire, frame: bytes) -> Fate:
        return self.fate(frame)


def nth(number: int, fate: Fate) -> Callable[[bytes], Fate]:
    """This fate for the reply with this number, counted from 1 over all connections."""
    seen = 0

    def judge(_frame: bytes) -> Fate:
        nonlocal seen
        seen += 1
        return fate if seen == number else "pass"

    return judge


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


def _pass(_frame: bytes) -> Fate:
    return "pass"
