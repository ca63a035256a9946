"""The whole service on a stage: server, provider, API and worker as processes, looked at as they run.

`Watch` looks at all of them twenty
times a second.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import redis

from tests.benchmarks.measure import resident_megabytes, service
from tests.support.processes import Service
from tests.support.servers import RedisServer, free_port
from worker.contract.keys import Keys
from worker.contract.queues import queue
from worker.contract.schemas import Lane
from worker.contract.settings import ContractSettings

LOOK_SECONDS: Final = 0.05
MODEL: Final = "gpt-4o-mini"
"""A model whose price is known."""
MEGABYTE: Final = 1024 * 1024


class Stage:
    """What runs; `settings` are those of API and worker, without prefix."""

    def __init__(
        self, folder: Path, store: RedisServer, provider: dict[str, Any], **settings: object
    ) -> None:
        self.store = store
        self.provider = str(provider["url"])
        self.folder = folder
        self._settings = {
            "redis_url": store.url,
            "provider": "openai",
            "openai_api_key": "none",
            "openai_base_url": self.provider,
            "model": MODEL,
            "metrics_port": "0",
            "api_port": str(free_port()),
            **{name: str(value) for name, value in settings.items()},
        }
        self._count = 0
        self.api = self._start("api")
        self.worker = self._start("worker")

    @property
    def contract(self) -> ContractSettings:
        return ContractSettings.load(redis_url=self.store.url)

    @property
    def pids(self) -> dict[str, int]:
        return {"API": self.api.process.pid, "worker": self.worker.process.pid}

    def calls(self) -> int:
        """How many calls the provider has seen."""
        root = self.provider.removesuffix("/v1")
        return int(httpx.get(f"{root}/calls", params={"after": 10**9}, trust_env=False).json()["total"])

    def close(self) -> None:
        self.worker.close()
        self.api.close()

    def _start(self, module: str) -> Service:
        self._count += 1
        known = {f"AIFORGE_{name.upper()}": value for name, value in self._settings.items()}
        started = Service(module, self.folder / f"{module}-{self._count}", known)
        started.ready()
        return started


@contextlib.contextmanager
def stage(*, latency: float, tokens: int = 50, **settings: object) -> Iterator[Stage]:
    """A stage of its own, gone at exit; `latency` is the provider's, in seconds."""
    folder = Path(tempfile.mkdtemp(prefix="aiforge-stage-"))
    options = ("--port", "0", "--tokens", str(tokens), "--latency", str(latency), "--keep-calls", "100")
    server = RedisServer()
    with server as store, service("aiforge.testing", *options) as (_, provider):
        made = Stage(folder, store, provider, **settings)
        try:
            yield made
        finally:
            with contextlib.redirect_stdout(io.StringIO()):
                made.close()
            shutil.rmtree(folder, ignore_errors=True)


class Look(NamedTuple):
    """One look: seconds, MB of memory by process and of the server's data, wake-ups, items done."""

    at: float
    resident: dict[str, float]
    data: float
    lane: int
    done: int
    state: str


@dataclass
class Watch:
    """Looks at a stage from a thread of its own, `with Watch(stage) as watch`; `batch_id` may come later."""

    stage: Stage
    batch_id: str | None = None
    others: dict[str, Callable[[], int | None]] = field(default_factory=dict)
    """Further processes by name, each with its pid while it runs."""
    looks: list[Look] = field(default_factory=list)

    def __enter__(self) -> Watch:
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._redis = redis.Redis(port=self.stage.store.port)
        names = self.stage.contract.namespace
        self._keys = Keys(names)
        self._lane = self._keys.broker_prefix() + queue(names, Lane.BATCH)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join()
        self._redis.close()

    def peak(self, name: str) -> float:
        return max((look.resident[name] for look in self.looks if name in look.resident), default=0.0)

    @property
    def data(self) -> float:
        """MB of the server's data at most."""
        return max(look.data for look in self.looks)

    @property
    def lane(self) -> int:
        return max(look.lane for look in self.looks)

    def when(self, done: int) -> float:
        """When so many items were done, between two looks."""
        before = after = self.looks[0]
        for look in self.looks:
            before, after = after, look
            if look.done >= done:
                break
        share = (done - before.done) / max(1, after.done - before.done)
        return before.at + (after.at - before.at) * share

    def rate(self, first: int, last: int) -> float:
        """Items a second from the `first` to the `last` one."""
        return (last - first) / max(1e-9, self.when(last) - self.when(first))

    def since(self, state: str) -> float | None:
        """When the batch was first seen in this state."""
        return next((look.at for look in self.looks if look.state == state), None)

    def _run(self) -> None:
        while not self._leave.wait(LOOK_SECONDS):
            with contextlib.suppress(redis.RedisError, OSError, StopIteration):
                self.looks.append(self._look())

    def _look(self) -> Look:
        pids = {**self.stage.pids, **{name: pid() for name, pid in self.others.items()}}
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.info("memory")
        pipeline.llen(self._lane)
        pipeline.hmget(self._keys.batch(self.batch_id or "batch_00"), "completed", "failed", "state")
        memory, lane, (completed, failed, state) = pipeline.execute()
        resident = {name: resident_megabytes(pid) for name, pid in pids.items() if pid and _lives(pid)}
        done = int(completed or 0) + int(failed or 0)
        return Look(
            time.perf_counter(),
            resident,
            memory["used_memory"] / MEGABYTE,
            lane,
            done,
            (state or b"").decode(),
        )


def data_megabytes(stage: Stage) -> float:
    """What the server's data take now."""
    with redis.Redis(port=stage.store.port) as client:
        memory: Any = client.info("memory")
    return float(memory["used_memory"]) / MEGABYTE


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}/status").exists()
