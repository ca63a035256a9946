"""Worker and API with a Redis Cluster for data and one server for Celery, also while the cluster changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from aiforge.testing import FakeProvider, Gate, Reply
from tests.support import leaks
from tests.support.cluster import RedisCluster
from tests.support.processes import Start
from tests.support.servers import RedisServer
from tests.support.turns import Connect, ended
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import BatchItem, BatchRequest, BatchState, TurnRequest, TurnState

pytestmark = pytest.mark.anyio
CONVERSATIONS = 12


@pytest.fixture(scope="module")
def server() -> Iterator[RedisCluster]:
    """Three primaries, each with a replica."""
    with RedisCluster(replicas=3) as cluster:
        yield cluster


@pytest.fixture
def environment(environment: dict[str, str], valkey: RedisServer, namespace: str) -> Iterator[dict[str, str]]:
    yield {**environment, "broker_url": valkey.url}
    leaks.forget(valkey, namespace)


@pytest.fixture
async def client(connect: Connect, valkey: RedisServer) -> TurnClient:
    return await connect(broker_url=valkey.url)


@pytest.mark.soak
async def test_turns_and_batches_run_and_a_slot_moves_meanwhile(
    server: RedisCluster,
    client: TurnClient,
    provider: FakeProvider,
    worker_process: Start,
    api_process: Start,
) -> None:
    worker, api = worker_process(), api_process()
    async with httpx.AsyncClient(timeout=30, base_url=api.url) as http:
        assert (await http.get("/readyz")).status_code == 200
        answered = await http.post("/v1/conversations/c/turns?wait=20", json={"message": "Hello"})
        assert answered.json()["state"] == "completed", answered.text

        moving = client.turns.keys.conversation("default", "c")
        source = server.holder(moving)
        target = next(node for node in server.primaries if node is not source)
        posted = [
            asyncio.create_task(
                http.post(f"/v1/conversations/{name}/turns?wait=20", json={"message": f"Question {number}"})
            )
            for number in range(3)
            for name in ["c", *(f"c-{number}" for number in range(CONVERSATIONS))]
        ]
        await asyncio.to_thread(server.move, moving, target)
        for reply in await asyncio.gather(*posted):
            assert reply.json()["state"] == "completed", reply.text
        assert server.holder(moving) is target
    assert len(await client.messages("c")) == 8

    items = [BatchItem(message=f"Item {number}") for number in range(20)]
    batch = await client.submit_batch(BatchRequest(items=items))

    async def over() -> bool:
        return (await client.batch(batch.batch_id)).state is BatchState.COMPLETED

    await eventually(over, 20)
    assert worker.terminate() == 0


@pytest.mark.soak
async def test_a_killed_nodes_replica_takes_over_and_nothing_is_lost(
    server: RedisCluster, client: TurnClient, provider: FakeProvider, worker_process: Start
) -> None:
    worker_process()
    provider.when("slow", Reply(chunks=["one ", Gate("door"), "two"]))
    names = [f"c-{number}" for number in range(CONVERSATIONS)]
    running = [await client.submit(TurnRequest(message="slow"), conversation_id=name) for name in names]
    await eventually(lambda: len(provider.calls) == len(names), 20)
    killed = server.primaries[0]
    killed.ask("WAIT", 1, 5_000)
    killed.kill()
    try:
        provider.open("door")
        for turn in running:
            assert await ended(client, turn.turn_id) is TurnState.COMPLETED
        following = [
            await client.submit(TurnRequest(message="And now?"), conversation_id=name) for name in names
        ]
        for turn in following:
            assert (await client.wait(turn.turn_id, 30)).state is TurnState.COMPLETED
        for name in names:
            assert len(await client.messages(name)) == 4
        assert len(provider.calls) == 2 * len(names)
    finally:
        server.revive(killed)
