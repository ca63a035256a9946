"""The whole service on a stage: server, provider, API and worker as processes, looked at as they run.

The server, the worker and the API can be killed and started again on their ports. A process can be held to
the address space that it has and so much more. `Watch` looks at all of them twenty times a second.
"""

from __future__ import annotations

import contextlib
import io
import resource
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
from tests.support.waiting import wait_until
from worker.contract.ids import SHARDS
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
        self._limits: dict[str, int] = {}
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

    def in_flight(self) -> int:
        """How many slices are held; each has one call at most."""
        keys = Keys(self.contract.namespace)
        with redis.Redis(port=self.store.port) as client:
            pipeline = client.pipeline(transaction=False)
            for shard in range(SHARDS):
                pipeline.zcard(keys.leases(shard))
            return sum(pipeline.execute())

    def kill(self, part: str) -> None:
        """kill -9 of the `worker`, the `api` or the `redis`, and another in its place."""
        if part == "redis":
            self.store.kill()
            self.store.start()
            return
        service: Service = getattr(self, part)
        with contextlib.redirect_stdout(io.StringIO()):
            service.close()
        setattr(self, part, self._start(part))

    def hold(self, part: str, more: int) -> int:
        """Let the `worker` or the `api` have `more` megabytes of address space than now, also when it is
        started again; returns the megabytes that it may have."""
        pid = getattr(self, part).process.pid
        self._limits[part] = round(address_megabytes(pid)) + more
        limit(pid, self._limits[part])
        return self._limits[part]

    def close(self) -> None:
        self.worker.close()
        self.api.close()

    def _start(self, module: str) -> Service:
        self._count += 1
        known = {f"AIFORGE_{name.upper()}": value for name, value in self._settings.items()}
        started = Service(module, self.folder / f"{module}-{self._count}", known)
        if module in self._limits:
            limit(started.process.pid, self._limits[module])
        started.ready()
        return started


def address_megabytes(pid: int) -> float:
    """The address space of a process."""
    return int(_status(pid, "VmSize")) / 1024


def limit(pid: int, megabytes: int) -> None:
    """Let a process have no more address space than this; what it asks for beyond fails."""
    most = megabytes * MEGABYTE
    resource.prlimit(pid, resource.RLIMIT_AS, (most, most))


def _status(pid: int, name: str) -> str:
    text = Path(f"/proc/{pid}/status").read_text()
    return next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name}:"))


@contextlib.contextmanager
def stage(
    *, latency: float, tokens: int = 50, durability: str = "everysec", **settings: object
) -> Iterator[Stage]:
    """A stage of its own, gone at exit; `latency` is the provider's, in seconds."""
    folder = Path(tempfile.mkdtemp(prefix="aiforge-stage-"))
    options = ("--port", "0", "--tokens", str(tokens), "--latency", str(latency), "--keep-calls", "100")
    server = RedisServer(options={"appendfsync": durability})
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


def settle(watch: Watch) -> None:
    """Wait for a few looks, taken from now on."""
    seen = len(watch.looks)
    wait_until(lambda: len(watch.looks) >= seen + 4)


def data_megabytes(stage: Stage) -> float:
    """What the server's data take now."""
    with redis.Redis(port=stage.store.port) as client:
        memory: Any = client.info("memory")
    return float(memory["used_memory"]) / MEGABYTE


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}/status").exists()
