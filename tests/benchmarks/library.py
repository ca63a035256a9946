"""The library alone, with what is aimed at: batches beside a plain aiohttp loop, an agent's own costs.

`python -m tests.benchmarks.library` prints two tables in about a minute. The server only sends prepared
bytes. Each contender is a process of its own with asyncio's own event loop; they take turns, and the best
of the rounds counts, because other programs only ever add to it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import aiohttp

from aiforge import ChatAgent
from aiforge.tools.registry import resolve
from tests.benchmarks.measure import show
from tests.benchmarks.providers import serving

WIDTH: Final = 100
ROUNDS: Final = 3
BATCHES: Final = ((0.05, 3_000, 40), (0.2, 1_500, 70))
"""Seconds of the provider's latency, items, and per cent of the plain loop's rate that are aimed at."""
TURNS: Final = 400
AGENTS: Final = 500
QUESTION: Final = "What are your opening hours on public holidays?"

Figures = dict[str, float]


def agent(url: str, **options: Any) -> ChatAgent:
    return ChatAgent(**{"OPENAI_API_KEY": "bench", "OPENAI_BASE_URL": url, **options})


def texts(count: int) -> list[str]:
    return [f"{QUESTION} {number}" for number in range(count)]


async def ask_plainly(session: aiohttp.ClientSession, url: str, text: str) -> str:
    """What one would write by hand."""
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": text}]}
    async with session.post(f"{url}/chat/completions", json=body) as reply:
        return str((await reply.json())["choices"][0]["message"]["content"])


async def plain_loop(url: str, questions: list[str]) -> int:
    """`WIDTH` tasks that share the questions."""
    waiting = iter(questions)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def work() -> list[str]:
            return [await ask_plainly(session, url, text) for text in waiting]

        answers = await asyncio.gather(*(work() for _ in range(WIDTH)))
    return sum(map(len, answers))


def timed(run: Callable[[int], int], count: int) -> Figures:
    """Calls a second, and CPU milliseconds a call."""
    assert run(WIDTH) == WIDTH
    spent, began = time.process_time(), time.perf_counter()
    assert run(count) == count
    seconds, spent = time.perf_counter() - began, time.process_time() - spent
    return {"per_second": count / seconds, "cpu_ms": spent / count * 1000}


def measure_plain(url: str, count: int) -> Figures:
    return timed(lambda number: asyncio.run(plain_loop(url, texts(number))), count)


def measure_batch(url: str, count: int) -> Figures:
    one = agent(url)
    return timed(
        lambda number: len(one.run_batch(texts(number), concurrency=WIDTH, max_batch=count).results), count
    )


def measure_agent(url: str, count: int) -> Figures:
    """Milliseconds: CPU of a turn of each kind, and time of a constructor."""
    tool = resolve(["calculator"])
    kinds = {"turn": agent(url), "tools": agent(url, tools=tool), "memory": agent(url, memory_k=200)}

    async def turns() -> Figures:
        found: Figures = {}
        async with aiohttp.ClientSession() as session:
            asks: dict[str, Callable[[str], Awaitable[Any]]] = {
                "plain": lambda text: ask_plainly(session, url, text),
                **{name: each.achat for name, each in kinds.items()},
            }
            for name, ask in asks.items():
                found[name] = await each_costs(ask, count)
        return found

    figures = asyncio.run(turns())
    began = time.perf_counter()
    for _ in range(AGENTS):
        agent(url, tools=tool)
    figures["constructor"] = (time.perf_counter() - began) / AGENTS * 1000
    return figures


async def each_costs(ask: Callable[[str], Awaitable[Any]], count: int) -> float:
    """CPU milliseconds of one of `count` turns, one after the other; memory is full before they begin."""
    for text in texts(count // 4):
        await ask(text)
    began = time.process_time()
    for text in texts(count):
        await ask(text)
    return (time.process_time() - began) / count * 1000


def measure_import(_url: str, _count: int) -> Figures:
    """In a process that has loaded nothing else."""
    found: Figures = {}
    for name, statement in (("import", "import aiforge"), ("import_agent", "from aiforge import ChatAgent")):
        program = (
            f"import time; t = time.perf_counter(); {statement}; print((time.perf_counter() - t) * 1000)"
        )
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
        found[name] = float(run.stdout)
    return found


CONTENDERS: Final[dict[str, Callable[[str, int], Figures]]] = {
    "plain": measure_plain,
    "batch": measure_batch,
    "agent": measure_agent,
    "import": measure_import,
}


def once(contender: str, url: str, count: int) -> Figures:
    """One contender in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.library", contender, url, str(count)]
    run = subprocess.run(command, capture_output=True, check=True, text=True)
    figures: Figures = json.loads(run.stdout)
    return figures


def batches() -> Iterator[list[str]]:
    for latency, count, aim in BATCHES:
        with serving(latency) as url:
            rounds = [{name: once(name, url, count) for name in ("plain", "batch")} for _ in range(ROUNDS)]
        best = {
            name: max((each[name] for each in rounds), key=lambda figures: figures["per_second"])
            for name in ("plain", "batch")
        }
        for name, shown in (("plain", "a plain aiohttp loop"), ("batch", "run_batch")):
            rate = best[name]["per_second"]
            yield [
                f"{latency * 1000:.0f} ms: {shown}",
                f"{rate:,.0f}",
                f"{WIDTH / latency:,.0f}",
                f"{rate / best['plain']['per_second']:.0%}",
                f"≥ {aim} %" if name == "batch" else "",
                f"{best[name]['cpu_ms']:.2f}",
            ]


def own_costs() -> Iterator[list[str]]:
    with serving() as url:
        rounds = [{**once("agent", url, TURNS), **once("import", url, 0)} for _ in range(ROUNDS)]
    best = {name: min(each[name] for each in rounds) for name in rounds[0]}
    for name, shown, aim in (
        ("import", "import aiforge, ms", "< 150"),
        ("import_agent", "from aiforge import ChatAgent, ms", ""),
        ("constructor", "ChatAgent(…) after the first, ms", "≤ 1"),
        ("turn", "a turn, ms of CPU", "≤ 3"),
        ("tools", "a turn with a tool on offer, through the graph, ms of CPU", "≤ 3"),
        ("memory", "a turn behind 200 remembered messages, ms of CPU", "≤ 3"),
        ("plain", "the same call by hand with aiohttp, ms of CPU", ""),
    ):
        yield [shown, f"{best[name]:.2f}", aim]


def main() -> None:
    columns = (f"not streamed, {WIDTH} wide", "items/s", "ideal", "of plain", "aim", "CPU ms/item")
    show("The library's batches", columns, list(batches()))
    show("An agent's own costs, provider at 0 ms", ("", "measured", "aim"), list(own_costs()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        contender, url, count = sys.argv[1:]
        sys.stdout.write(json.dumps(CONTENDERS[contender](url, int(count))))
    else:
        main()
