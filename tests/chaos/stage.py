"""The processes of a run: Valkey, the provider, the API, and two workers that are replaced when they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.chaos import provider
from tests.chaos.plan import Plan
from tests.support.processes import Service
from tests.support.servers import RedisServer

WORKERS: Final = 2
GRACE_SECONDS: Final = 0.3
"""Less than an answer takes, so that SIGTERM leaves something to hand back."""
NAMESPACE: Final = "chaos"


class Stage:
    """Starts everything and keeps two workers running; `services` are all that were ever started."""

    def __init__(self, plan: Plan, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._count = 0
        self.late: Counter[str] = Counter()
        self.redis = stack.enter_context(RedisServer(options={"appendfsync": plan.durability}))
        self.redis_url = self.redis.url
        voice = provider.settings(plan.words, plan.gap, plan.silence)
        self.provider = self._start("tests.chaos.provider", voice)
        self._settings = {
            "AIFORGE_REDIS_URL": self.redis_url,
            "AIFORGE_NAMESPACE": NAMESPACE,
            "AIFORGE_LEASE_SECONDS": str(plan.lease),
            "AIFORGE_PROVIDER": "openai",
            "AIFORGE_MODEL": "gpt-4o-mini",
            "AIFORGE_OPENAI_API_KEY": "none",
            "AIFORGE_OPENAI_BASE_URL": self.provider.url,
            "AIFORGE_METRICS_PORT": "0",
            "AIFORGE_API_PORT": "0",
            "AIFORGE_GRACE_SECONDS": str(GRACE_SECONDS),
            "AIFORGE_LOG_LEVEL": "warning",
        }
        self._code = (
            {"PYTHONPATH": f"{plan.code}{os.pathsep}{Path(__file__).parents[2]}"} if plan.code else {}
        )
        self.api = self._start("api", self._settings)
        self.workers = [self._worker() for _ in range(WORKERS)]

    @classmethod
    @contextlib.contextmanager
    def open(cls, plan: Plan, folder: Path) -> Iterator[Self]:
        """Everything is killed in the end, whatever happens."""
        with contextlib.ExitStack() as stack:
            yield cls(plan, folder, stack)

    async def ready(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(service.ready) for service in (self.api, *self.workers)))

    def replace(self, worker: Service) -> None:
        """Start another worker in the place of one that has ended."""
        self.workers[self.workers.index(worker)] = self._worker()

    async def count_late(self, worker: Service) -> None:
        """Add what this worker has counted of its refused commits and tokens; once in its life."""
        async with httpx.AsyncClient(trust_env=False) as http:
            shown = (await http.get(f"{worker.url}/metrics")).text
        for family in text_string_to_metric_families(shown):
            for sample in family.samples:
                outcome = sample.labels.get("outcome", "")
                if sample.name == "aiforge_turns_total" and outcome in {"refused", "lost"}:
                    self.late[outcome] += int(sample.value)

    async def end_workers(self) -> None:
        """Let them finish what they hold: when this returns nothing runs any more."""
        for worker in self.workers:
            await self.count_late(worker)
        await asyncio.gather(*(asyncio.to_thread(worker.terminate) for worker in self.workers))

    def _worker(self) -> Service:
        return self._start("worker", self._settings | self._code)

    def _start(self, module: str, settings: dict[str, str]) -> Service:
        self._count += 1
        service = Service(module, self._folder / f"{self._count}-{module}", settings)
        self._stack.callback(service.close)
        return service


def runs_in(worker: Service, name: bytes | None) -> bool:
    """Whether a turn's `worker` field names this process."""
    return name is not None and name.decode().startswith(f"{socket.gethostname()}:{worker.process.pid}:")
