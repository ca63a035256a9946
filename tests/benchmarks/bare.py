"""The floor: a bare asyncio program that makes the calls and publishes the tokens, and does nothing else.

`python -m tests.benchmarks.bare KIND URL REDIS WIDTH RATE TURNS` with KIND `aiohttp` (streamed, tokens
published), `langchain` (langchain-openai alone, streamed, nothing published) or `items` (aiohttp, not
streamed). With RATE 0 a turn begins when one of WIDTH ends. Prints one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable

import aiohttp
import redis.asyncio as redis
import uvloop
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.benchmarks.measure import processor_seconds, quantile, resident_megabytes

FLUSH_SECONDS = 0.015
Turn = Callable[[int], Awaitable[float]]
"""Runs one turn; returns the seconds to its first token."""


class Bare:
    """Calls through one aiohttp session; tokens of all turns go out in one pipeline every 15 ms."""

    def __init__(self, url: str, store: redis.Redis, session: aiohttp.ClientSession) -> None:
        self._url = f"{url}/chat/completions"
        self._store = store
        self._session = session
        self._pending: list[tuple[str, str]] = []

    async def streamed(self, number: int) -> float:
        began, first = time.perf_counter(), 0.0
        async with self._session.post(self._url, json=_body(number, stream=True)) as response:
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                choices = json.loads(line[6:])["choices"]
                text = choices[0]["delta"].get("content") if choices else None
                if text:
                    first = first or time.perf_counter() - began
                    self._pending.append((f"turn:{number}", text))
        return first

    async def whole(self, number: int) -> float:
        began = time.perf_counter()
        async with self._session.post(self._url, json=_body(number, stream=False)) as response:
            json.loads(await response.read())
        return time.perf_counter() - began

    async def publish(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            batch, self._pending = self._pending, []
            texts: dict[str, list[str]] = {}
            for channel, text in batch:
                texts.setdefault(channel, []).append(text)
            if texts:
                pipeline = self._store.pipeline(transaction=False)
                for channel, parts in texts.items():
                    pipeline.publish(channel, json.dumps(parts))
                await pipeline.execute()


def _body(number: int, *, stream: bool) -> dict[str, object]:
    body: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": f"question {number}"}]}
    return {**body, "stream": True, "stream_options": {"include_usage": True}} if stream else body


def langchain(url: str) -> Turn:
    model = ChatOpenAI(base_url=url, api_key=SecretStr("none"), model="m", stream_usage=True, max_retries=0)

    async def turn(number: int) -> float:
        began, first = time.perf_counter(), 0.0
        async for chunk in model.astream(f"question {number}"):
            if chunk.content:
                first = first or time.perf_counter() - began
        return first

    return turn


async def loop(turn: Turn, width: int, turns: int) -> list[float]:
    """`turns` turns, `width` at a time."""
    slots = asyncio.Semaphore(width)

    async def one(number: int) -> float:
        async with slots:
            return await turn(number)

    return list(await asyncio.gather(*(one(number) for number in range(turns))))


async def arrivals(turn: Turn, rate: float, turns: int) -> list[float]:
    """`turns` turns, begun `rate` times a second however many still run."""
    began = time.perf_counter()

    async def one(number: int) -> float:
        await asyncio.sleep(max(0.0, began + number / rate - time.perf_counter()))
        return await turn(number)

    return list(await asyncio.gather(*(one(number) for number in range(turns))))


async def measured(turn: Turn, pid: int, *, width: int, rate: float, turns: int) -> dict[str, float]:
    """A burst of `width` turns, then steady arrivals; processor time is that of `pid` in the second part."""
    burst = await loop(turn, width, width)
    spent, began = processor_seconds(pid), time.perf_counter()
    firsts = await arrivals(turn, rate, turns)
    seconds = time.perf_counter() - began
    return {
        "per_second": turns / seconds,
        "cpu_ms": (processor_seconds(pid) - spent) / turns * 1000,
        "p50_ms": quantile(firsts, 0.5) * 1000,
        "p99_ms": quantile(firsts, 0.99) * 1000,
        "burst_ms": quantile(burst, 0.99) * 1000,
        "rss_mb": resident_megabytes(pid),
    }


async def main(kind: str, url: str, store_url: str, *, width: int, rate: float, turns: int) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, redis.from_url(store_url) as store:
        bare = Bare(url, store, session)
        turn: Turn = {"aiohttp": bare.streamed, "items": bare.whole, "langchain": langchain(url)}[kind]
        publishing = asyncio.create_task(bare.publish())
        if rate:
            figures = await measured(turn, os.getpid(), width=width, rate=rate, turns=turns)
        else:
            figures = await whole(turn, width, turns)
        publishing.cancel()
    sys.stdout.write(json.dumps(figures))


async def whole(turn: Turn, width: int, turns: int) -> dict[str, float]:
    """As many calls a second as `width` of them give."""
    await loop(turn, width, width)
    spent, began = processor_seconds(os.getpid()), time.perf_counter()
    await loop(turn, width, turns)
    seconds = time.perf_counter() - began
    return {
        "per_second": turns / seconds,
        "cpu_ms": (processor_seconds(os.getpid()) - spent) / turns * 1000,
        "rss_mb": resident_megabytes(os.getpid()),
    }


if __name__ == "__main__":
    kind, url, store_url, width, rate, turns = sys.argv[1:]
    uvloop.run(main(kind, url, store_url, width=int(width), rate=float(rate), turns=int(turns)))
