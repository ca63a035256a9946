"""Reads event streams as the standard says, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import msgspec


class Sent(NamedTuple):
    id: int
    event: str
    data: dict[str, Any]


class Stream:
    """One open response."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._chunks = response.aiter_raw()
        self._rest = b""
        self.pings = 0

    async def block(self) -> bytes | None:
        """The next block of lines, without the empty line after it; None at the end."""
        while b"\n\n" not in self._rest:
            try:
                self._rest += await anext(self._chunks)
            except StopAsyncIteration:
                assert self._rest == b"", "the stream ended within a block"
                return None
        block, self._rest = self._rest.split(b"\n\n", 1)
        return block

    async def next(self) -> Sent | None:
        """The next event; None at the end."""
        while (block := await self.block()) is not None:
            if block == b": ping":
                self.pings += 1
                continue
            if block.startswith(b":"):
                continue
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n"))
            assert list(fields) == [b"id", b"event", b"data"]
            data = msgspec.json.decode(fields[b"data"])
            assert data["type"] == fields[b"event"].decode()
            return Sent(int(fields[b"id"]), data["type"], data)
        return None

    async def rest(self) -> list[Sent]:
        """All events until the stream ends."""
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found


@contextlib.asynccontextmanager
async def opened(http: httpx.AsyncClient, method: str, path: str, **options: Any) -> AsyncIterator[Stream]:
    async with http.stream(method, path, **options) as response:
        assert response.status_code == 200, await response.aread()
        yield Stream(response)


async def events(http: httpx.AsyncClient, turn_id: str, **options: Any) -> list[Sent]:
    """All events of a turn until the stream ends."""
    async with opened(http, "GET", f"/v1/turns/{turn_id}/events", **options) as stream:
        return await stream.rest()
