"""Turns and items through a whole worker, beside a bare client and langchain-openai, in one run.

The provider is the fake one in a process of its own; it streams 50 tokens. Turns arrive steadily, and the
gap between tokens grows with the width, so that every width sees the same number of turns a second, as
many of them at a time as it says. Before that, all of them arrive in one burst. Added time to first
token is that of the whole service, from the call of `submit` to the reader's first token, less what the
bare client needs.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass

import uvloop

from aiforge.core.events import Token
from tests.benchmarks.bare import measured
from tests.benchmarks.measure import processor_seconds, resident_megabytes, service, show
from tests.support.servers import RedisServer
from worker.contract.client import TurnClient
from worker.contract.schemas import BatchItem, BatchRequest, TurnRequest
from worker.contract.settings import ContractSettings

TOKENS = 50
USUAL_WIDTH = 64
"""langchain-openai alone is measured once: at greater widths one core does not keep up with the rate."""
TURN_COLUMNS = (
    "50 tokens each",
    "turns/s",
    "CPU ms/turn",
    "× bare",
    "TTFT p50 ms",
    "p99 ms",
    "burst p99 ms",
    "RSS MB",
)
ITEM_COLUMNS = ("not streamed, 100 wide", "items/s", "ideal", "of bare", "CPU ms/item", "RSS MB")
RATE = 40
"""Streamed turns a second; enough to keep the worker busy, few enough to leave the reader its core."""


@dataclass(frozen=True)
class Figures:
    per_second: float
    cpu_ms: float
    rss_mb: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    burst_ms: float = 0.0

    def cells(self, floor: Figures) -> list[str]:
        return [
            f"{self.per_second:,.0f}",
            f"{self.cpu_ms:.2f}",
            f"{self.cpu_ms / floor.cpu_ms:.2f} ×",
            f"{self.p50_ms:.1f}",
            f"{self.p99_ms:.1f}",
            f"{self.burst_ms:.0f}",
            f"{self.rss_mb:.0f}",
        ]


def bare(kind: str, url: str, store: str, width: int, turns: int, *, rate: float = 0.0) -> Figures:
    arguments = [kind, url, store, str(width), str(rate), str(turns)]
    run = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.bare", *arguments],
        capture_output=True,
        check=True,
        text=True,
    )
    return Figures(**json.loads(run.stdout))


async def streamed(store: str, worker: int, width: int, turns: int) -> Figures:
    async with await TurnClient.connect(ContractSettings.load(redis_url=store)) as client:

        async def turn(number: int) -> float:
            began, first = time.perf_counter(), 0.0
            accepted = await client.submit(TurnRequest(message=f"question {number}"))
            async for _, event in client.events(accepted.turn_id):
                if isinstance(event, Token):
                    first = first or time.perf_counter() - began
            return first

        return Figures(**await measured(turn, worker, width=width, rate=RATE, turns=turns))


async def items(store: str, worker: int, count: int) -> Figures:
    async with await TurnClient.connect(ContractSettings.load(redis_url=store)) as client:
        spent, began = processor_seconds(worker), time.perf_counter()
        batch = await client.submit_batch(
            BatchRequest(items=[BatchItem(message=f"question {number}") for number in range(count)])
        )
        while batch.finished_at is None:
            await asyncio.sleep(0.05)
            batch = await client.batch(batch.batch_id)
        seconds = time.perf_counter() - began
    spent = (processor_seconds(worker) - spent) / count * 1000
    return Figures(count / seconds, spent, resident_megabytes(worker))


def worker_environment(store: str, provider: str, width: int) -> dict[str, str]:
    return {
        "AIFORGE_REDIS_URL": store,
        "AIFORGE_PROVIDER": "openai",
        "AIFORGE_OPENAI_API_KEY": "none",
        "AIFORGE_OPENAI_BASE_URL": provider,
        "AIFORGE_MODEL": "m",
        "AIFORGE_METRICS_PORT": "0",
        "AIFORGE_CONCURRENCY": str(max(width, 100)),
    }


def run_streamed(width: int, *, rows: list[list[str]]) -> None:
    gap = width / RATE / TOKENS
    turns = max(2 * width, 400)
    options = ("--port", "0", "--tokens", str(TOKENS), "--chunk-gap", f"{gap:.4f}")
    with RedisServer() as store, service("aiforge.testing", *options) as (_, fake):
        floor = bare("aiohttp", fake["url"], store.url, width, turns, rate=RATE)
        usual = None
        if width == USUAL_WIDTH:
            usual = bare("langchain", fake["url"], store.url, width, 200, rate=RATE)
        with service("worker", **worker_environment(store.url, fake["url"], width)) as (process, _):
            ours = uvloop.run(streamed(store.url, process.pid, width, turns))
    rows.append([f"{width} wide: bare aiohttp + publish", *floor.cells(floor)])
    if usual is not None:
        rows.append([f"{width} wide: langchain-openai alone", *usual.cells(floor)])
    rows.append([f"{width} wide: the whole worker", *ours.cells(floor)])


def run_items(latency: float, count: int, *, rows: list[list[str]]) -> None:
    options = ("--port", "0", "--tokens", str(TOKENS), "--latency", str(latency))
    with RedisServer() as store, service("aiforge.testing", *options) as (_, fake):
        floor = bare("items", fake["url"], store.url, 100, count)
        with service("worker", **worker_environment(store.url, fake["url"], 100)) as (process, _):
            ours = uvloop.run(items(store.url, process.pid, count))
    ideal = f"{100 / latency:,.0f}"
    for name, figures in (("bare aiohttp", floor), ("a batch through the worker", ours)):
        rows.append(
            [
                f"{latency * 1000:.0f} ms: {name}",
                f"{figures.per_second:,.0f}",
                ideal,
                f"{figures.per_second / floor.per_second:.0%}",
                f"{figures.cpu_ms:.2f}",
                f"{figures.rss_mb:.0f}",
            ]
        )


def main() -> None:
    rows: list[list[str]] = []
    for width in (64, 256, 1_000):
        run_streamed(width, rows=rows)
    show("Streamed turns", TURN_COLUMNS, rows)
    rows = []
    for latency, count in ((0.05, 5_000), (0.5, 1_000)):
        run_items(latency, count, rows=rows)
    show("Batch items", ITEM_COLUMNS, rows)


if __name__ == "__main__":
    main()
