"""Threads against greenlets: one worker process with 64, 256 and 1,000 turns in flight.

`python -m tests.benchmarks.pools` prints a table in about two minutes; `--pools` and `--widths` choose, and
with `--slow 3` the worker has time to spare.
Turns are submitted evenly over the time that one of them streams, so that all are in flight at the end of
it. A stream has 50 tokens; the pause between them grows with the width, so that the same number of tokens
is under way in a second and neither pool has to wait for the processor. CPU is that of the worker's
process, time to first token runs from the call of `submit` to the published token, less the provider's
latency. Then the provider falls silent with all slots taken, and the worker is stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import redis.asyncio
import uvloop

from tests.support.processes import Service
from tests.support.servers import RedisServer
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import TurnRequest, TurnState
from worker.contract.settings import ContractSettings

TOKENS: Final = 50
LATENCY: Final = 0.05
GAP_PER_TURN: Final = 0.0003
"""Seconds between tokens and turn in flight: 20 ms at 64, 0.3 s at 1,000."""
GRACE: Final = 2.0
WIDTHS: Final = (64, 256, 1000)
POOLS: Final = ("greenlets", "threads")
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Row(NamedTuple):
    """What one pool needed at one width."""

    pool: str
    width: int
    cpu_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    rss_mb: float
    soft_s: float
    cold_s: float
    back: int


class Bench:
    """One pool at one width."""

    def __init__(self, pool: str, width: int, slow: float, server: RedisServer, folder: Path) -> None:
        self.pool = pool
        self.width = width
        self.gap = slow * max(0.02, GAP_PER_TURN * width)
        self.server = server
        self.folder = folder
        self.settings = ContractSettings(redis_url=server.url, namespace=f"{pool}-{width}")
        self.provider = Service("aiforge.testing", folder / f"provider-{pool}-{width}", {})

    async def run(self) -> Row:
        with self._worker("measured") as worker:
            async with await TurnClient.connect(self.settings) as client:
                await self._answer({"text": "word " * TOKENS, "delay": LATENCY, "gap": self.gap})
                await self._stream(client, 8, 0.2)
                before = _cpu_seconds(worker.process.pid)
                waits = await self._stream(client, self.width, LATENCY + TOKENS * self.gap)
                cpu = _cpu_seconds(worker.process.pid) - before
                rss = _peak_mb(worker.process.pid)
                await self._answer({"chunks": ["word ", {"type": "silence"}]})
                turns = await self._fill(client, worker)
                soft = _stopped(worker, signal.SIGTERM)
        with self._worker("stopped") as worker:
            await self._full(worker)
            cold = _stopped(worker, signal.SIGQUIT)
        async with await TurnClient.connect(self.settings) as client:
            states = [await client.turn(turn_id) for turn_id in turns]
        back = sum(turn.state is TurnState.QUEUED and turn.attempts == 0 for turn in states)
        p50, p99 = (waits[int(len(waits) * share)] * 1000 for share in (0.5, 0.99))
        return Row(self.pool, self.width, cpu / self.width * 1000, p50, p99, rss, soft, cold, back)

    @contextlib.contextmanager
    def _worker(self, name: str) -> Iterator[Service]:
        settings = {
            "AIFORGE_REDIS_URL": self.server.url,
            "AIFORGE_NAMESPACE": self.settings.namespace,
            "AIFORGE_PROVIDER": "openai",
            "AIFORGE_OPENAI_API_KEY": "sk-bench",
            "AIFORGE_OPENAI_BASE_URL": self.provider.url,
            "AIFORGE_METRICS_PORT": "0",
            "AIFORGE_POOL": self.pool,
            "AIFORGE_CONCURRENCY": str(self.width),
            "AIFORGE_GRACE_SECONDS": str(GRACE),
        }
        worker = Service("worker", self.folder / f"{name}-{self.pool}-{self.width}", settings)
        try:
            worker.ready()
            yield worker
        finally:
            worker.kill()

    async def _answer(self, reply: dict[str, Any]) -> None:
        async with httpx.AsyncClient(trust_env=False) as http:
            address = self.provider.url.removesuffix("/v1")
            (await http.post(f"{address}/script", json={"default": reply})).raise_for_status()

    async def _stream(self, client: TurnClient, count: int, seconds: float) -> list[float]:
        """Submit turns over so many seconds; the sorted waits for their first tokens, when all are over."""
        async with _watching(self.settings) as seen:
            begun = time.perf_counter()
            asked: dict[str, float] = {}

            async def submit(number: int) -> None:
                await asyncio.sleep(begun + number * seconds / count - time.perf_counter())
                at = time.perf_counter()
                turn = await client.submit(TurnRequest(message="How late is it?"))
                asked[turn.turn_id] = at

            await asyncio.gather(*(submit(number) for number in range(count)))
            await eventually(lambda: seen.over == count, 120)
            return sorted(seen.first[turn_id] - at - LATENCY for turn_id, at in asked.items())

    async def _fill(self, client: TurnClient, worker: Service) -> list[str]:
        turns: list[str] = []
        for start in range(0, self.width, 50):
            some = range(start, min(start + 50, self.width))
            made = await asyncio.gather(*(client.submit(TurnRequest(message="Wait")) for _ in some))
            turns += [turn.turn_id for turn in made]
        await self._full(worker)
        return turns

    async def _full(self, worker: Service) -> None:
        async def full() -> bool:
            async with httpx.AsyncClient(trust_env=False) as http:
                text = (await http.get(f"{worker.url}/metrics")).text
            found = re.search(r'aiforge_turns_in_flight\{lane="chat"\} (\d+)', text)
            return found is not None and int(found[1]) == self.width

        await eventually(full, 60)


class _Seen:
    """What was published: the time of each turn's first token, and how many turns are over."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.over = 0


@contextlib.asynccontextmanager
async def _watching(settings: ContractSettings) -> AsyncIterator[_Seen]:
    seen = _Seen()
    assert settings.redis_url is not None
    client = redis.asyncio.Redis.from_url(settings.redis_url)
    pubsub: Any = client.pubsub()
    await pubsub.psubscribe(f"{{{settings.namespace}:*}}:events:*")

    async def watch() -> None:
        async for message in pubsub.listen():
            data = message["data"]
            if message["type"] != "pmessage":
                continue
            turn_id = message["channel"].rpartition(b":")[2].decode()
            if turn_id not in seen.first and b'"token"' in data:
                seen.first[turn_id] = time.perf_counter()
            if b'"done"' in data:
                seen.over += 1

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait([task])
        await pubsub.aclose()
        await client.aclose()


def _stopped(worker: Service, number: signal.Signals) -> float:
    began = time.perf_counter()
    worker.process.send_signal(number)
    assert worker.process.wait(60) == 0
    return time.perf_counter() - began


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _peak_mb(pid: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


async def bench(pools: list[str], widths: list[int], slow: float) -> None:
    print("pool       in flight  CPU/turn  added TTFT p50     p99      RSS    soft*   cold  handed back")
    for width in widths:
        for pool in pools:
            with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
                one = Bench(pool, width, slow, server, Path(folder))
                try:
                    row = await one.run()
                finally:
                    one.provider.kill()
            print(
                f"{row.pool:10} {row.width:9} {row.cpu_ms:6.1f} ms {row.ttft_p50_ms:12.1f} ms"
                f" {row.ttft_p99_ms:7.1f} ms {row.rss_mb:5.0f} MB {row.soft_s:5.1f} s {row.cold_s:4.1f} s"
                f" {row.back:6} / {row.width}",
                flush=True,
            )
    print(f"* with a grace time of {GRACE:.0f} s that no turn keeps")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pools", default=",".join(POOLS))
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--slow", type=float, default=1.0, help="how many times longer the pauses are")
    options = parser.parse_args()
    widths = [int(width) for width in options.widths.split(",")]
    uvloop.run(bench(options.pools.split(","), widths, options.slow))


if __name__ == "__main__":
    main()
