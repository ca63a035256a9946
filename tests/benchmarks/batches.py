"""Batches through the whole service: time, memory, fairness, money, and what is left of it under blows.

`python -m tests.benchmarks.batches [PART …] --items N`; the parts are `file` (OpenAI's SDK), `cli` (`aiforge
batch run`), `fair`, `money`, `kills` and `limits`. API, worker, server and provider are processes of their
own. The rate of items is held against what width and latency allow, and against a bare aiohttp loop of the
same width in the same run. What must not be is asserted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from tests.benchmarks import batch_proofs
from tests.benchmarks.batch_blows import MORE, blows, limits
from tests.benchmarks.batch_fairness import fairness
from tests.benchmarks.command_run import CommandRun
from tests.benchmarks.file_run import FileRun
from tests.benchmarks.measure import show
from tests.benchmarks.stage import Look, Stage, Watch, data_megabytes, settle, stage
from tests.benchmarks.turns import bare

PARTS: Final = ("file", "cli", "fair", "money", "kills", "limits")
SHAPES: Final = ((0.5, 256), (0.05, 100))
"""The provider's latency in seconds, and how many calls there are at a time."""
CHATS: Final = 100
"""So many arrive at most, and one for each fifty items."""
BESIDE: Final = 20_000
FIGURES: Final = ("", "figure")
SHORT: Final = ("file", "cli", "fair", "money", "--items", "1000", "--kills", "1")
"""What `make bench` shows of it, in less than two minutes."""
MEMORY_COLUMNS: Final = ("MB", "before", "peak", "added", "after")
Rows = list[list[str]]


def run_file(count: int, latency: float, width: int) -> tuple[Rows, Rows]:
    """What it took, and the memory."""
    with stage(latency=latency, concurrency=width, batch_window=width) as on:
        warm(on)
        floor = bare("items", on.provider, on.store.url, width, min(count, int(20 * width / latency)))
        calls, data = on.calls(), data_megabytes(on)
        with Watch(on) as watch:
            run = FileRun(on, watch, count)
            settle(watch)
            before = watch.looks[-1]
            batch_id = run.submit()
            found = run.follow(batch_id)
            ended = time.perf_counter()
            run.download(found)
            kept = data_megabytes(on)
            run.delete(found)
            settle(watch)
            after = watch.looks[-1]
        calls = on.calls() - calls
        left = data_megabytes(on)
    ready = watch.since("in_progress") or watch.since("finalizing") or ended
    edge = min(1_000, count // 4)
    skip = min(width, count // 8)
    per_second = count / (watch.when(count) - ready)
    ideal = width / latency
    took = [
        ["upload, lines/s", f"{count / run.stored:,.0f}"],
        ["upload and validation, lines/s", f"{count / (ready - run.began):,.0f}"],
        ["items/s", f"{per_second:,.0f}"],
        [f"of {width} ÷ {latency * 1000:.0f} ms", f"{per_second / ideal:.0%}"],
        [f"of bare aiohttp ({floor.per_second:,.0f}/s)", f"{per_second / floor.per_second:.0%}"],
        [f"the first {edge}, items/s", f"{watch.rate(skip, skip + edge):,.0f}"],
        [f"the last {edge}, items/s", f"{watch.rate(count - skip - edge, count - skip):,.0f}"],
        ["last answer to files written, s", f"{ended - watch.when(count):.1f}"],
        ["download, lines/s", f"{count / run.downloaded:,.0f}"],
        ["provider calls", f"{calls:,}"],
        [f"wake-ups on the lane at most (window {width})", f"{watch.lane}"],
    ]
    memory = [
        *memory_rows(watch, before, after, ("API", "worker")),
        ["data", f"{data:.0f}", f"{watch.data:.0f}", f"{watch.data - data:.0f}", f"{left:.0f}"],
        ["data, bytes an item", "", "", f"{(kept - data) * 2**20 / count:,.0f}", ""],
    ]
    return took, memory


def memory_rows(watch: Watch, before: Look, after: Look, names: Sequence[str]) -> Rows:
    rows = []
    for name in names:
        least, most = before.resident[name], watch.peak(name)
        last = after.resident[name]
        rows.append([name, f"{least:.0f}", f"{most:.0f}", f"{most - least:.0f}", f"{last:.0f}"])
    return rows


def warm(on: Stage) -> None:
    """What is loaded at first use is loaded by then."""
    with Watch(on) as watch:
        run = FileRun(on, watch, 200)
        found = run.follow(run.submit())
        run.download(found)
        run.delete(found)


def run_command(on: Stage, count: int) -> tuple[float, Watch]:
    """Seconds of the command for so many questions, from its start to its end."""
    began = time.perf_counter()
    run = CommandRun(on, count)
    with Watch(on, others={"CLI": run.pid}) as watch:
        run.wait()
        seconds = time.perf_counter() - began
        settle(watch)
    return seconds, watch


def run_cli(count: int, latency: float, width: int) -> tuple[Rows, Rows]:
    with stage(latency=latency, concurrency=width, batch_window=width) as on:
        _, least = run_command(on, 200)
        calls, data, before = on.calls(), data_megabytes(on), least.looks[-1]
        seconds, watch = run_command(on, count)
        calls = on.calls() - calls
        kept = data_megabytes(on)
    base, most = least.peak("CLI"), watch.peak("CLI")
    took = [
        ["from start to the whole table, s", f"{seconds:.1f}"],
        ["items/s, everything counted", f"{count / seconds:,.0f}"],
        [f"of {width} ÷ {latency * 1000:.0f} ms", f"{count / seconds / (width / latency):.0%}"],
        ["provider calls", f"{calls:,}"],
        ["wake-ups on the lane at most", f"{watch.lane}"],
    ]
    memory = [
        ["CLI (before: peak with 200)", f"{base:.0f}", f"{most:.0f}", f"{most - base:.0f}", ""],
        *memory_rows(watch, before, watch.looks[-1], ("API", "worker")),
        ["data", f"{data:.0f}", f"{watch.data:.0f}", f"{watch.data - data:.0f}", f"{kept:.0f}"],
        ["data, bytes an item", "", "", f"{(kept - data) * 2**20 / count:,.0f}", ""],
    ]
    return took, memory


def parts(chosen: Sequence[str], count: int, kills: int) -> Iterator[tuple[str, Sequence[str], Rows]]:
    """Title, columns and rows of each table, as it is there."""
    for latency, width in SHAPES:
        at = f"{count:,} items, {latency * 1000:.0f} ms, {width} wide"
        for name, run in (("file", run_file), ("cli", run_cli)):
            if name in chosen and (name == "file" or latency < 0.5):
                took, memory = run(count, latency, width)
                yield f"Batch, {name}: {at}", FIGURES, took
                yield f"Memory, {name}: {at}", MEMORY_COLUMNS, memory
    if "fair" in chosen:
        for latency, width in SHAPES:
            rows = fairness(BESIDE, min(CHATS, count // 50), latency=latency, width=width)
            yield f"Fairness: {latency * 1000:.0f} ms, {width} wide", ("", "alone", "beside", "ratio"), rows
    if "money" in chosen:
        yield "Money", FIGURES, batch_proofs.money(count)
        yield "A cap and a budget, and a worker that is killed", FIGURES, batch_proofs.capped(2 * kills)
    if "kills" in chosen:
        yield "Blows", FIGURES, blows(count, kills)
    if "limits" in chosen:
        yield f"Held to {MORE} MB more of address space", FIGURES, limits(count, kills)


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.batches", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without any")
    parser.add_argument("--items", type=int, default=5_000, metavar="N")
    parser.add_argument("--kills", type=int, default=10, metavar="K", help="of each part of the service")
    options = parser.parse_args(arguments)
    if wrong := set(options.parts) - set(PARTS):
        parser.error(f"PART is one of {', '.join(PARTS)}, not {min(wrong)}")
    for title, columns, rows in parts(options.parts or PARTS, options.items, options.kills):
        show(title, columns, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
