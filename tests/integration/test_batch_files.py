"""Batches that come as files, run by real workers that are killed on the way."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from typing import Any

import pytest

from aiforge.testing import FakeProvider, Reply
from tests.support.processes import Start
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import Batch, BatchRequest, BatchState

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
LINES = 120


async def posted(client: TurnClient, count: int, **more: Any) -> Batch:
    upload = await client.files.begin("default", "q.jsonl", "batch")
    for number in range(count):
        body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": f"question {number}."}]}
        line = {"custom_id": f"id-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        await upload.write(json.dumps(line).encode() + b"\n")
    file = await upload.seal()
    options = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **more}
    return await client.submit_batch(BatchRequest(input_file_id=file.file_id, **options))


async def output(client: TurnClient, file_id: str | None) -> list[str]:
    assert file_id is not None
    data = b"".join([piece async for piece in client.files.read(file_id, "default")])
    return [json.loads(line)["custom_id"] for line in data.splitlines()]


async def test_killed_workers_lose_and_double_nothing(
    client: TurnClient, worker_process: Start, provider: FakeProvider
) -> None:
    """Whoever validates, answers or writes the files dies: whoever comes after goes on."""
    provider.when("question", Reply(text="An answer.", delay=0.05))
    batch = await posted(client, LINES)

    async def reached(done: int, state: BatchState | None = None) -> bool:
        now = await client.batch(batch.batch_id)
        return now.completed >= done or now.state is state

    for done in (0, LINES * 4 // 10, LINES * 7 // 10):
        worker = worker_process(lease_seconds="1.5", concurrency="8")
        await eventually(partial(reached, done), seconds=60)
        worker.kill()
    worker_process(lease_seconds="1.5", concurrency="8")
    await eventually(lambda: reached(LINES + 1, BatchState.COMPLETED), seconds=60)
    ended = await client.batch(batch.batch_id)
    assert (ended.completed, ended.failed, ended.error_file_id) == (LINES, 0, None)
    assert await output(client, ended.output_file_id) == [f"id-{number}" for number in range(LINES)]
    calls = await client.turns.calls(batch.batch_id)
    outcomes = Counter(call.outcome for call in calls)
    assert outcomes["ok"] == LINES
    assert outcomes["lost"] <= 3 * 8
    assert len(provider.calls) <= LINES + outcomes["lost"]
    assert ended.cost == sum(call.cost or 0 for call in calls), "what was lost is estimated, and counts"


async def test_a_window_that_ends_keeps_what_is_there(
    client: TurnClient, worker_process: Start, provider: FakeProvider
) -> None:
    provider.when("question", Reply(text="An answer.", delay=1.0))
    worker_process(concurrency="1")
    batch = await posted(client, 10, completion_window="5s")

    async def ended() -> bool:
        return (await client.batch(batch.batch_id)).state is BatchState.EXPIRED

    await eventually(ended, seconds=60)
    done = await client.batch(batch.batch_id)
    assert 1 <= done.completed < 10
    kept, left = await output(client, done.output_file_id), await output(client, done.error_file_id)
    assert kept + left == [f"id-{number}" for number in range(10)]
    assert len(kept) == done.completed
