"""The processes of a run: Valkey, the provider, the API, and two workers that are replaced when they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, NamedTuple, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos import provider
from tests.chaos.plan import GRACE_SECONDS, Plan
from tests.chaos.tap import Tap, script_names
from tests.support.processes import Service
from tests.support.proxy import Relay
from tests.support.servers import RedisServer, free_port
from tests.support.waiting import eventually

WORKERS: Final = 2
NAMESPACE: Final = "chaos"
SKEW_SECONDS: Final = 600
END_SECONDS: Final = 30.0


class Node(NamedTuple):
    """A process and its line to Redis."""

    service: Service
    tap: Tap


class Stage:
    """Starts everything and keeps an API and two workers running."""

    def __init__(self, plan: Plan, folder: Path, stack: contextlib.AsyncExitStack) -> None:
        self._plan = plan
        self._folder = folder
        self._stack = stack
        self._count = 0
        self._names = script_names(plan.code)
        self._api_port = str(free_port())
        self.late: Counter[str] = Counter()
        self.taps: list[Tap] = []
        folder.mkdir(parents=True, exist_ok=True)
        words = {"loglevel": "notice", "logfile": str(folder / "redis")}
        self.redis = stack.enter_context(RedisServer(options={"appendfsync": plan.durability, **words}))
        voice = provider.settings(plan.words, plan.gap, plan.silence)
        self.provider = self._start("tests.chaos.provider", voice)
        self.line: Relay
        self.api: Node
        self.workers: list[Node]

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, plan: Plan, folder: Path) -> AsyncIterator[Self]:
        """Everything is ready, and is killed in the end, whatever happens."""
        async with contextlib.AsyncExitStack() as stack:
            stage = cls(plan, folder, stack)
            await asyncio.to_thread(stage.provider.ready)
            port = int(stage.provider.url.removesuffix("/v1").rpartition(":")[2])
            stage.line = await stack.enter_async_context(Relay(port))
            stage.api = await stage._node("api", {"AIFORGE_API_PORT": stage._api_port})
            stage.workers = [await stage._worker() for _ in range(WORKERS)]
            everyone = (stage.api, *stage.workers)
            await asyncio.gather(*(asyncio.to_thread(node.service.ready) for node in everyone))
            yield stage

    @property
    def nodes(self) -> list[Node]:
        return [self.api, *self.workers]

    def claimed_since(self, at: float) -> bool:
        """Whether any worker was given a turn after this, in Unix seconds."""
        return any(tap.claims and tap.claims[-1].at > at for tap in self.taps)

    async def replace(self, node: Node) -> Node:
        """Start another process in the place of one that has ended."""
        if node is self.api:
            self.api = await self._node("api", {"AIFORGE_API_PORT": self._api_port})
            return self.api
        self.workers[self.workers.index(node)] = new = await self._worker()
        return new

    async def gone(self, node: Node) -> None:
        """Wait until a process, its children, and all that it has sent to Redis have come to their ends."""
        await asyncio.to_thread(node.service.process.wait, END_SECONDS)
        await eventually(lambda: not _alive(node.service.process.pid), END_SECONDS)
        await eventually(lambda: node.tap.connections == 0, END_SECONDS)

    async def count_late(self, node: Node) -> None:
        """Add what this worker has counted of its refused commits and tokens; once in its life."""
        # One that only just begins needs this event loop for its way to Redis.
        await asyncio.to_thread(node.service.ready)
        async with httpx.AsyncClient(trust_env=False, timeout=END_SECONDS) as http:
            shown = (await http.get(f"{node.service.url}/metrics")).text
        for family in text_string_to_metric_families(shown):
            for sample in family.samples:
                outcome = sample.labels.get("outcome", "")
                if sample.name == "aiforge_turns_total" and outcome in {"refused", "lost"}:
                    self.late[outcome] += int(sample.value)

    async def end_workers(self) -> None:
        """Let them finish what they hold: when this returns nothing runs any more."""
        for node in self.workers:
            await self.count_late(node)
        await asyncio.gather(*(asyncio.to_thread(node.service.terminate) for node in self.workers))

    async def _worker(self) -> Node:
        own = {"AIFORGE_METRICS_PORT": "0", "AIFORGE_GRACE_SECONDS": str(GRACE_SECONDS)}
        if self._plan.code is not None:
            own["PYTHONPATH"] = f"{self._plan.code}{os.pathsep}{Path(__file__).parents[2]}"
        if self._plan.skew:
            own |= skewed(SKEW_SECONDS if self._count % 2 else -SKEW_SECONDS)
        return await self._node("worker", own)

    async def _node(self, module: str, own: dict[str, str]) -> Node:
        tap = await self._stack.enter_async_context(Tap(self.redis.port, self._names))
        self.taps.append(tap)
        common = {
            "AIFORGE_REDIS_URL": tap.url,
            "AIFORGE_NAMESPACE": NAMESPACE,
            "AIFORGE_LEASE_SECONDS": str(self._plan.lease),
            "AIFORGE_LOG_LEVEL": "warning",
            "AIFORGE_PROVIDER": "openai",
            "AIFORGE_MODEL": "gpt-4o-mini",
            "AIFORGE_OPENAI_API_KEY": "none",
            "AIFORGE_OPENAI_BASE_URL": f"http://127.0.0.1:{self.line.port}/v1",
        }
        return Node(await asyncio.to_thread(self._start, module, common | own), tap)

    def _start(self, module: str, settings: dict[str, str]) -> Service:
        self._count += 1
        folder = self._folder / f"{self._count}-{module}"
        # What gives a process another clock is loaded when its program starts, not when it is forked.
        loaded = module in ("api", "worker") and not self._plan.skew
        service = Service(module, folder, settings, loaded=loaded)
        self._stack.callback(service.close)
        return service


def runs_in(node: Node, name: bytes | None) -> bool:
    """Whether a turn's `worker` field names this process."""
    number = node.service.process.pid
    return name is not None and name.decode().startswith(f"{socket.gethostname()}:{number}:")


def libfaketime() -> Path | None:
    """The library that gives a process another clock; None where it is not installed."""
    found = sorted(Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


def skewed(seconds: int) -> dict[str, str]:
    """The environment of a process whose clocks are so many seconds fast, the monotonic one, too.

    With that one left alone the library breaks sleeping; as it is, threads that wait with a time limit
    wait wrongly. So this goes well with kills, and says little about faults that are waited out.
    """
    library = libfaketime()
    assert library is not None, "libfaketime is not installed"
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": f"{seconds:+d}s",
    }


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
