"""How the clients send what they ask: over httpx, again where that is safe, and streamed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Self, TypeVar

import httpx

from aiforge.client.call import Call, Page, http_options
from aiforge.client.errors import from_response, from_transport
from aiforge.client.retry import Attempts
from aiforge.client.stream import TIMEOUT, Resuming

T = TypeVar("T")


class Sender:
    """One service, asked from plain code."""

    def __init__(self, base_url: str, *, token: str | None = None, retries: int = 2) -> None:
        self.base_url = base_url
        self._retries = retries
        self._http = httpx.Client(**http_options(base_url, token))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _send(self, call: Call[T]) -> T:
        attempts = Attempts(call, self._retries)
        while True:
            try:
                response = self._http.send(call.request(self._http))
            except httpx.HTTPError as error:
                pause = attempts.pause(error)
                if pause is None:
                    raise from_transport(error, self.base_url) from None
            else:
                pause = attempts.pause(response)
                if pause is None:
                    return call.answer(response)
            time.sleep(pause)

    def _all(self, call: Call[Page[T]] | None) -> Iterator[T]:
        while call is not None:
            page = self._send(call)
            yield from page.data
            call = page.following

    def _events(self, reading: Resuming[T]) -> Iterator[tuple[int, T]]:
        while not reading.over:
            try:
                with self._http.stream(
                    "GET", reading.path, headers=reading.headers(), timeout=TIMEOUT
                ) as response:
                    if response.is_success:
                        for chunk in response.iter_bytes():
                            yield from reading.feed(chunk)
                    else:
                        response.read()
                        reading.refused(response)
                reading.closed()
            except httpx.HTTPError as error:
                reading.broke(error)
            if not reading.over:
                time.sleep(reading.pause())

    def _bytes(self, path: str) -> Iterator[bytes]:
        try:
            with self._http.stream("GET", path, timeout=TIMEOUT) as response:
                if not response.is_success:
                    response.read()
                    raise from_response(response)
                yield from response.iter_bytes()
        except httpx.HTTPError as error:
            raise from_transport(error, self.base_url) from None


class AsyncSender:
    """One service, asked from asyncio."""

    def __init__(self, base_url: str, *, token: str | None = None, retries: int = 2) -> None:
        self.base_url = base_url
        self._retries = retries
        self._http = httpx.AsyncClient(**http_options(base_url, token))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def _send(self, call: Call[T]) -> T:
        attempts = Attempts(call, self._retries)
        while True:
            try:
                response = await self._http.send(call.request(self._http))
            except httpx.HTTPError as error:
                pause = attempts.pause(error)
                if pause is None:
                    raise from_transport(error, self.base_url) from None
            else:
                pause = attempts.pause(response)
                if pause is None:
                    return call.answer(response)
            await asyncio.sleep(pause)

    async def _all(self, call: Call[Page[T]] | None) -> AsyncIterator[T]:
        while call is not None:
            page = await self._send(call)
            for found in page.data:
                yield found
            call = page.following

    async def _events(self, reading: Resuming[T]) -> AsyncIterator[tuple[int, T]]:
        while not reading.over:
            try:
                async with self._http.stream(
                    "GET", reading.path, headers=reading.headers(), timeout=TIMEOUT
                ) as response:
                    if response.is_success:
                        async for chunk in response.aiter_bytes():
                            for pair in reading.feed(chunk):
                                yield pair
                    else:
                        await response.aread()
                        reading.refused(response)
                reading.closed()
            except httpx.HTTPError as error:
                reading.broke(error)
            if not reading.over:
                await asyncio.sleep(reading.pause())

    async def _bytes(self, path: str) -> AsyncIterator[bytes]:
        try:
            async with self._http.stream("GET", path, timeout=TIMEOUT) as response:
                if not response.is_success:
                    await response.aread()
                    raise from_response(response)
                async for piece in response.aiter_bytes():
                    yield piece
        except httpx.HTTPError as error:
            raise from_transport(error, self.base_url) from None
