"""Worker and API behind Sentinel, for data and for Celery's messages: a failover is followed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import httpx
import pytest

from aiforge.testing import FakeProvider, Gate, Reply
from tests.support.processes import Start
from tests.support.sentinel import Watched
from tests.support.turns import Connect, ended
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import TurnRequest, TurnState

pytestmark = pytest.mark.anyio
AGAIN_SECONDS: Final = 30.0
"""How soon after a failover new turns have to be answered."""


@pytest.fixture
def server() -> Iterator[Watched]:
    with Watched() as watched:
        yield watched


@pytest.mark.soak
async def test_a_failover_loses_nothing_that_was_replicated(
    server: Watched,
    connect: Connect,
    provider: FakeProvider,
    worker_process: Start,
    api_process: Start,
) -> None:
    client = await connect()
    worker, api = worker_process(lease_seconds="4"), api_process()
    provider.when("slow", Reply(chunks=["one ", Gate("door"), "two"]))
    running = [await client.submit(TurnRequest(message="slow"), conversation_id=f"c-{n}") for n in range(5)]
    await eventually(lambda: len(provider.calls) == len(running), 20)
    waiting = [await client.submit(TurnRequest(message="next"), conversation_id=f"c-{n}") for n in range(5)]
    server.primary.ask("WAIT", 1, 5_000)
    server.primary.kill()
    killed = time.monotonic()
    provider.open("door")

    async with httpx.AsyncClient(timeout=30, base_url=api.url) as http:

        async def answered() -> bool:
            reply = await http.post("/v1/turns?wait=10", json={"message": "Anybody there?"})
            return reply.is_success and reply.json()["state"] == "completed"

        await eventually(answered, AGAIN_SECONDS)
    assert time.monotonic() - killed < AGAIN_SECONDS
    for turn in (*running, *waiting):
        assert await ended(client, turn.turn_id) is TurnState.COMPLETED
    for number in range(5):
        assert len(await client.messages(f"c-{number}")) == 4
    await _is_woken_by_messages(server, client)
    assert server.server is server.replica
    assert worker.terminate() == 0


async def _is_woken_by_messages(server: Watched, client: TurnClient) -> None:
    """The worker takes wake-ups from the new primary; without them only the reaper would find the turn."""
    began = time.monotonic()
    for _ in range(5):
        turn = await client.submit(TurnRequest(message="Awake?"))
        assert (await client.wait(turn.turn_id, 10)).state is TurnState.COMPLETED
    assert time.monotonic() - began < 5
