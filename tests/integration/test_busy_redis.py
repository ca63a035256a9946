"""A Redis that says BUSY to everybody for a while, because somebody's script does not end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import httpx
import pytest
from redis.exceptions import ResponseError

from aiforge.testing import FakeProvider, Gate, Reply
from tests.support.processes import Start
from tests.support.servers import RedisServer
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import TurnRequest, TurnState

pytestmark = pytest.mark.anyio


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as own:
        yield own


async def test_heartbeats_reaper_and_wake_ups_outlive_it(
    server: RedisServer,
    client: TurnClient,
    provider: FakeProvider,
    worker_process: Start,
    api_process: Start,
) -> None:
    server.ask("CONFIG", "SET", "busy-reply-threshold", 50)
    worker, api = worker_process(lease_seconds="2"), api_process()
    provider.when("slow", Reply(chunks=["one", Gate("door"), "two"]))
    async with httpx.AsyncClient(timeout=20) as http:
        slow = await client.submit(TurnRequest(message="slow"))
        await eventually(lambda: len(provider.calls) == 1, 20)

        async def worker_is(status: int) -> bool:
            return (await http.get(f"{worker.url}/readyz")).status_code == status

        assert await worker_is(200)
        busy = asyncio.create_task(asyncio.to_thread(server.ask, "EVAL", "while true do end", 0))
        await eventually(client.ready, 20)
        await eventually(lambda: worker_is(503), 20)
        refused = await http.post(f"{api.url}/v1/turns", json={"message": "Hello?"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1"), refused.text
        server.ask("SCRIPT", "KILL")
        with contextlib.suppress(ResponseError):
            await busy

        await eventually(lambda: worker_is(200), 20)
        provider.open("door")
        assert (await client.wait(slow.turn_id, 30)).state is TurnState.COMPLETED
        posted = await http.post(f"{api.url}/v1/turns?wait=20", json={"message": "Hello?"})
        assert posted.json()["state"] == "completed"
        assert worker.running
