"""Batches whose parts are killed on the way, or have little memory: all rows, each once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

import httpx

from tests.benchmarks.command_run import CommandRun
from tests.benchmarks.file_run import FileRun
from tests.benchmarks.measure import resident_megabytes
from tests.benchmarks.stage import Stage, Watch, address_megabytes, data_megabytes, settle, stage
from tests.support.waiting import wait_until

WIDTH: Final = 100
LATENCY: Final = 0.05
LEASE: Final = 2.0
PATIENCE_SECONDS: Final = 3_600.0
PARTS: Final = ("worker", "api", "cli", "redis")
MORE: Final = 100
"""Megabytes of address space that a process may add to what it had."""
ROUNDS: Final = 3
"""Batches that are run after the blows, to see whether memory grows."""
Rows = list[list[str]]


def blows(count: int, kills: int) -> Rows:
    """A table of so many questions, and `kills` of each part on the way."""
    with stage(
        latency=LATENCY, durability="always", concurrency=WIDTH, batch_window=WIDTH, lease_seconds=LEASE
    ) as on:
        began, calls = time.perf_counter(), on.calls()
        with Watch(on) as watch:
            run = CommandRun(on, count)
            held = strike(on, run, PARTS * kills)
            run.wait()
            lane = watch.lane
        again = on.calls() - calls - count
        lost = held["worker"] + held["redis"]
        assert again <= lost, f"{again} calls were made again, where {lost} were in flight"
        assert lane <= WIDTH, f"{lane} wake-ups for a window of {WIDTH}"
        took = time.perf_counter() - began
        after = flat(on, max(200, count // 20))
    return [
        ["kills of worker, API, command and Redis", f"{kills} each"],
        ["rows, each id once", f"{count:,}"],
        ["calls made again", f"{again:,}"],
        *([f"in flight when the {part} was killed", f"{held[part]:,}"] for part in PARTS),
        [f"wake-ups on the lane at most (window {WIDTH})", f"{lane}"],
        ["the whole run, s", f"{took:.0f}"],
        *after,
    ]


def strike(on: Stage, run: CommandRun, parts: Sequence[str]) -> Counter[str]:
    """Kill one part after the other, evenly over the run; how many calls were in flight, by part."""
    held, seen = Counter[str](), on.calls()
    for number, part in enumerate(parts, start=1):
        wait_until(
            partial(_reached, on, seen + run.count * number // (len(parts) + 2)), PATIENCE_SECONDS, 0.02
        )
        held[part] += on.in_flight()
        if part == "cli":
            run.kill()
        else:
            on.kill(part)
    return held


def _reached(on: Stage, calls: int) -> bool:
    return on.calls() >= calls


def flat(on: Stage, count: int) -> Rows:
    """What worker and server hold after further batches, each of which is deleted; it does not grow."""
    forget(on)
    worker, data = [], []
    with Watch(on) as watch:
        for _ in range(ROUNDS):
            run = FileRun(on, watch, count)
            found = run.follow(run.submit())
            run.download(found)
            run.delete(found)
            settle(watch)
            worker.append(resident_megabytes(on.worker.process.pid))
            data.append(data_megabytes(on))
    assert worker[-1] - worker[0] < 10, worker
    assert data[-1] - data[0] < 1, data
    return [
        [f"MB after each of {ROUNDS} more batches, worker", ", ".join(f"{size:.0f}" for size in worker)],
        ["likewise, data", ", ".join(f"{size:.1f}" for size in data)],
    ]


def forget(on: Stage) -> None:
    """Delete all batches."""
    with httpx.Client(base_url=f"{on.api.url}/v1", trust_env=False, timeout=60) as http:
        while found := http.get("/batches", params={"limit": 100}).raise_for_status().json()["data"]:
            for batch in found:
                http.delete(f"/batches/{batch['id']}").raise_for_status()


def limits(count: int, kills: int) -> Rows:
    """A file, then a table whose command and API are killed on the way; no process may grow by more."""
    with stage(latency=LATENCY, concurrency=WIDTH, batch_window=WIDTH, lease_seconds=LEASE) as on:
        with Watch(on) as watch:
            file = FileRun(on, watch, 200)
            file.download(file.follow(file.submit()))
            small = CommandRun(on, 200)
            small.wait()
            most = {
                "API": on.hold("api", MORE),
                "worker": on.hold("worker", MORE),
                "command": round(small.most_address) + MORE,
            }
            file = FileRun(on, watch, count)
            found = file.follow(file.submit())
            file.download(found)
            file.delete(found)
            run = CommandRun(on, count, megabytes=most["command"])
            strike(on, run, ("api", "cli") * kills)
            run.wait()
        reached = {
            "API": address_megabytes(on.api.process.pid),
            "worker": address_megabytes(on.worker.process.pid),
            "command": run.most_address,
        }
    return [
        ["kills of API and command", f"{kills} each"],
        ["rows of a file and of a table, each id once", f"{count:,} and {count:,}"],
        *(
            [f"{name}, MB of address space, of at most", f"{reached[name]:.0f} of {most[name]}"]
            for name in most
        ),
    ]
