"""One slot per transition: a server in cluster mode refuses every script that reaches beyond its slot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from aiforge.core.events import Done
from tests.support import leaks
from tests.support.servers import RedisServer, free_port
from tests.support.slices import Sliced, kill, take
from tests.support.turns import Connect, answered, claim, crash, intended, paid, read, submit
from tests.support.waiting import eventually
from worker.contract.agent_store import RedisStore
from worker.contract.client import TurnClient
from worker.contract.keys import SHARDS
from worker.contract.schemas import BatchItem, BatchRequest, BatchState, ConversationSettings, TurnState

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["valkey", "redis7"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    kind = request.getfixturevalue(request.param).kind
    with RedisServer(kind, options={"cluster-enabled": "yes", "cluster-port": str(free_port())}) as own:
        own.ask("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
        yield own


@pytest.fixture
async def client(
    connect: Connect, server: RedisServer, valkey: RedisServer, namespace: str
) -> AsyncIterator[TurnClient]:
    """The broker is a URL of its own: Celery's keys do not keep to slots."""

    def serves() -> bool:
        return b"cluster_state:ok" in bytes(server.ask("CLUSTER", "INFO"))

    await eventually(serves)
    yield await connect(broker_url=valkey.url)
    leaks.forget(valkey.port, namespace)


async def test_every_turn_script_keeps_to_its_slot(client: TurnClient) -> None:
    await client.create_conversation(ConversationSettings(), conversation_id="c")
    place = await answered(client, "1", "one", conversation_id="c")
    second, third = [await submit(client, conversation_id="c") for _ in range(2)]
    running = await claim(client.turns, second)
    await running.tokens("a")
    await client.turns.heartbeat({second.turn_id: running.claim.fence})
    await client.turns.ledger(second.turn_id, settled=[paid(running.call_id)], intended=[intended("b")])
    await client.cancel(second.turn_id)
    await crash(client.turns, running)
    await (await claim(client.turns, second)).hand_back()
    await client.cancel(third.turn_id)
    await client.turns.reap(range(SHARDS), "reaper")
    await client.turns.presence("worker", 10)
    assert [event for _, event in await read(client, place)][-1] == Done()
    assert (await client.turn(third.turn_id)).state is TurnState.CANCELLED
    assert (await client.stats()).workers == 1


async def test_every_batch_script_keeps_to_its_slot(client: TurnClient) -> None:
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="x")] * 4))
    first, second = [await take(client.batches, batch.batch_id) for _ in range(2)]
    assert isinstance(first, Sliced)
    assert isinstance(second, Sliced)
    await first.answer_all()
    await second.hand_back()
    third = await take(client.batches, batch.batch_id)
    assert isinstance(third, Sliced)
    await kill(client.batches, batch.batch_id, third.taken.start)
    assert (await client.cancel_batch(batch.batch_id)).state is BatchState.CANCELLED
    assert len(await client.results(batch.batch_id)) == 1


async def test_every_script_of_an_agents_conversation_keeps_to_its_slot(
    server: RedisServer, client: TurnClient, namespace: str
) -> None:
    store = RedisStore(server.url, namespace=namespace)
    for number in (1, 2):
        await store.append("user-42", number, b"x")
    await store.compact("user-42", 2, b"y")
    assert await store.read("user-42") == [(2, b"y")]
    assert await store.conversations() == ["user-42"]
    await store.delete("user-42")
    assert await store.conversations() == []
    await store.close()
