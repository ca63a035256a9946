"""`python -m tests.chaos.baseline`: the same blows against plain Celery, counted in the same way.

Prints how many questions have no answer, how many have more than one, and how many were answered out of the
order in which they were asked.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import redis
from celery import Celery

from tests.chaos import provider
from tests.support.processes import Service
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

WORKERS: Final = 2
THREADS: Final = "32"
END_SECONDS: Final = 60.0
"""How long after the last blow messages may take to come back and be answered."""
TURNS: Final = 4
"""Questions of a conversation."""


class Count(NamedTuple):
    """What came of the questions that were sent."""

    asked: int
    lost: int
    doubled: int
    disordered: int


class Workers:
    """Celery's own command line, in process groups of their own."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = {**os.environ, **environment, "PYTHONPATH": str(Path(__file__).parents[2])}
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        command = [sys.executable, "-m", "celery", "-A", "tests.chaos.celery_app", "worker", "-l", "ERROR"]
        self._running.append(
            subprocess.Popen(
                [*command, "-P", "threads", "-c", THREADS, "-n", f"w{time.monotonic_ns()}@%h"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def kill(self, position: int) -> None:
        struck = self._running.pop(position)
        os.killpg(struck.pid, signal.SIGKILL)
        struck.wait()

    def end(self) -> None:
        while self._running:
            self.kill(0)


async def run(*, seed: int, kills: int, rate: float, pause: float) -> Count:
    """Ask at a steady rate while workers are killed, wait until no more answers come, and count."""
    random = Random(seed)
    with _stage() as (sender, workers, store):
        asked: dict[str, list[str]] = {}
        began = due = time.monotonic()
        for struck in range(kills):
            while time.monotonic() < began + (struck + 1) * pause:
                _ask(sender, asked)
                due += random.expovariate(rate)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
            workers.kill(random.randrange(WORKERS))
            workers.start()
        with contextlib.suppress(AssertionError):
            await eventually(lambda: _missing(store, asked) == 0, END_SECONDS)
        return _counted(store, asked)


@contextlib.contextmanager
def _stage() -> Iterator[tuple[Celery, Workers, redis.Redis]]:
    folder = Path(tempfile.mkdtemp(prefix="aiforge-baseline-"))
    with RedisServer() as server, contextlib.ExitStack() as stack:
        voice = Service("tests.chaos.provider", folder, provider.settings(30, 0.04, 0.2))
        stack.callback(voice.close)
        workers = Workers({"BASELINE_REDIS_URL": server.url, "BASELINE_PROVIDER_URL": voice.url})
        stack.callback(workers.end)
        for _ in range(WORKERS):
            workers.start()
        sender = stack.enter_context(Celery("sender", broker=server.url, set_as_current=False))
        yield sender, workers, stack.enter_context(redis.Redis.from_url(server.url))


def _ask(sender: Celery, asked: dict[str, list[str]]) -> None:
    name = f"c{sum(map(len, asked.values())) // TURNS}"
    questions = asked.setdefault(name, [])
    questions.append(f"{name} asks {len(questions)}")
    sender.send_task("answer", (name, questions[-1]), ignore_result=True)


def _remembered(store: redis.Redis, conversation: str) -> list[str]:
    """The questions of a conversation that were answered, in the order of the answers."""
    lines: Any = store.lrange(f"memory:{conversation}", 0, -1)
    return [message["content"] for message in map(json.loads, lines) if message["role"] == "user"]


def _missing(store: redis.Redis, asked: dict[str, list[str]]) -> int:
    return sum(len(set(questions) - set(_remembered(store, name))) for name, questions in asked.items())


def _counted(store: redis.Redis, asked: dict[str, list[str]]) -> Count:
    answered = {name: _remembered(store, name) for name in asked}
    return Count(
        asked=sum(map(len, asked.values())),
        lost=_missing(store, asked),
        doubled=sum(len(lines) - len(set(lines)) for lines in answered.values()),
        disordered=sum(list(dict.fromkeys(lines)) != sorted(set(lines)) for lines in answered.values()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.baseline", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rate", type=float, default=20.0, help="questions a second")
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between two kills")
    count = asyncio.run(run(**vars(parser.parse_args())))
    print(
        f"plain Celery: {count.asked} questions, {count.lost} lost, {count.doubled} answered twice,"
        f" {count.disordered} conversations out of order"
    )


if __name__ == "__main__":
    main()
