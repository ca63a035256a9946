"""What a long batch costs those who come beside it: a short batch, and chats."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import uvloop

from aiforge.core.events import Token
from tests.benchmarks.measure import quantile
from tests.benchmarks.stage import Stage, stage
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import BatchItem, BatchRequest, TurnRequest

CHATS_A_SECOND: Final = 5
SHORT: Final = 10
PATIENCE_SECONDS: Final = 3_600.0
Rows = list[list[str]]


def fairness(beside: int, chats: int, *, latency: float, width: int) -> Rows:
    """Columns: what, alone, beside a batch of so many items, ratio."""
    with stage(latency=latency, concurrency=width, batch_window=width) as on:
        return uvloop.run(_measured(on, beside, chats))


async def _measured(on: Stage, beside: int, count: int) -> Rows:
    async with await TurnClient.connect(on.contract) as client:
        await _seconds(client, SHORT)
        alone = sum([await _seconds(client, SHORT) for _ in range(3)]) / 3
        await _chats(client, CHATS_A_SECOND)
        idle = quantile(await _chats(client, count), 0.95)
        long = await _submitted(client, beside)

        async def at_work() -> bool:
            return (await client.batch(long)).completed > min(1_000, beside // 10)

        await eventually(at_work, PATIENCE_SECONDS)
        short = sum([await _seconds(client, SHORT) for _ in range(3)]) / 3
        done, began = (await client.batch(long)).completed, time.perf_counter()
        busy = quantile(await _chats(client, count), 0.95)
        batch = await client.batch(long)
        advanced = (batch.completed - done) / (time.perf_counter() - began)
        over = "" if batch.finished_at is None else ", which ended before the chats: more --items"
        if batch.finished_at is None:
            await client.cancel_batch(long)
    return [
        [f"{SHORT} items beside {beside:,}, s", f"{alone:.2f}", f"{short:.2f}", f"{short / alone:.2f} ×"],
        ["chat, first token, p95 ms", f"{idle * 1000:.0f}", f"{busy * 1000:.0f}", f"{busy / idle:.2f} ×"],
        [f"the batch meanwhile{over}, items/s", "", f"{advanced:,.0f}", ""],
    ]


async def _seconds(client: TurnClient, count: int) -> float:
    """From the call of submit to the end of a batch of so many items."""
    began = time.perf_counter()
    batch_id = await _submitted(client, count)

    async def over() -> bool:
        return (await client.batch(batch_id)).finished_at is not None

    await eventually(over, PATIENCE_SECONDS)
    return time.perf_counter() - began


async def _submitted(client: TurnClient, count: int) -> str:
    items = [BatchItem(message=f"question {number:07d}") for number in range(count)]
    return (await client.submit_batch(BatchRequest(items=items))).batch_id


async def _chats(client: TurnClient, count: int) -> list[float]:
    """Seconds to the first token of chats that arrive steadily."""
    began = time.perf_counter()

    async def one(number: int) -> float:
        await asyncio.sleep(max(0.0, began + number / CHATS_A_SECOND - time.perf_counter()))
        asked, first = time.perf_counter(), 0.0
        accepted = await client.submit(TurnRequest(message=f"chat {number}"))
        async for _, event in client.events(accepted.turn_id):
            if isinstance(event, Token):
                first = first or time.perf_counter() - asked
        return first

    return await asyncio.gather(*(one(number) for number in range(count)))
