"""On a Redis Cluster: every script keeps to its slot, each command finds its node, and nodes may change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from aiforge.core.events import Done
from aiforge.core.types import ConfigError
from tests.support import leaks
from tests.support.cluster import RedisCluster
from tests.support.servers import RedisServer
from tests.support.slices import Sliced, kill, take
from tests.support.turns import Connect, answered, claim, crash, intended, paid, read, submit
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.errors import NotFound
from worker.contract.ids import SHARDS
from worker.contract.keys import Keys
from worker.contract.memory.agent_store import RedisStore
from worker.contract.schemas import BatchItem, BatchRequest, BatchState, ConversationSettings, TurnState
from worker.contract.server.connection import Connection
from worker.contract.server.fitness import check_redis
from worker.contract.settings import ContractSettings

pytestmark = pytest.mark.anyio
TAGS = [f"{{tags:{number:02d}}}" for number in range(SHARDS)]


@pytest.fixture(scope="module", params=["valkey", "redis7"])
def server(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    """Three nodes that share the slots."""
    with RedisCluster(request.getfixturevalue(request.param).kind) as cluster:
        yield cluster


@pytest.fixture
async def client(connect: Connect, valkey: RedisServer, namespace: str) -> AsyncIterator[TurnClient]:
    """The broker is a URL of its own: Celery's keys do not keep to slots."""
    yield await connect(broker_url=valkey.url)
    leaks.forget(valkey, namespace)


@pytest.fixture
async def connection(server: RedisCluster) -> AsyncIterator[Connection]:
    connection = Connection(server.url)
    yield connection
    await connection.close()


async def test_every_turn_script_keeps_to_its_slot(client: TurnClient) -> None:
    await client.create_conversation(ConversationSettings(), conversation_id="c")
    place = await answered(client, "1", "one", conversation_id="c")
    second, third = [await submit(client, conversation_id="c") for _ in range(2)]
    running = await claim(client.turns, second)
    await running.tokens("a")
    await client.turns.heartbeat({second.turn_id: running.claim.fence})
    await client.turns.ledger(
        second.turn_id, "default", settled=[paid(running.call_id)], intended=[intended("b")]
    )
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
    server: RedisCluster, client: TurnClient, namespace: str
) -> None:
    store = RedisStore(server.url, namespace=namespace)
    for number in (1, 2):
        await store.append("user-42", number, b"x")
    await store.compact("user-42", 2, b"y")
    await store.append("another", 1, b"z")
    assert await store.read("user-42") == [(2, b"y")]
    assert await store.conversations() == ["another", "user-42"]
    for conversation in await store.conversations():
        await store.delete(conversation)
    assert await store.conversations() == []
    await store.close()


async def test_what_is_spread_over_the_nodes_is_listed_as_one(client: TurnClient) -> None:
    names = sorted(f"c-{number}" for number in range(12))
    for name in names:
        await answered(client, "1", "one", conversation_id=name)
    latest = await client.conversations.latest("default", None, 100)
    assert sorted(conversation.conversation_id for _, conversation in latest) == names
    (row,) = await client.usage(group_by=["model"])
    assert row.calls == len(names)
    for name in names:
        await client.erase(name)
    assert await client.conversations.latest("default", None, 100) == []
    with pytest.raises(NotFound):
        await client.messages(names[0])


async def test_a_reader_hears_what_is_written_on_any_node(client: TurnClient) -> None:
    places = [await submit(client, conversation_id=f"c-{number}") for number in range(6)]
    reading = [asyncio.create_task(read(client, place)) for place in places]
    for place in places:
        running = await claim(client.turns, place)
        await running.tokens("a", "b")
        await running.answer("ab")
    for events in await asyncio.gather(*reading):
        assert [number for number, _ in events] == list(range(1, len(events) + 1))
        assert events[-1][1] == Done()


async def test_commands_of_all_nodes_get_their_own_replies(
    server: RedisCluster, connection: Connection
) -> None:
    assert len({server.holder(tag).port for tag in TAGS}) == 3
    names = [f"{tag}:n" for tag in TAGS]
    for number, name in enumerate(names):
        server.holder(name).ask("SET", name, number)
    replies = await asyncio.gather(
        *(connection.commands([("GET", name) for name in names]) for _ in range(20))
    )
    assert replies == [[b"%d" % number for number in range(SHARDS)]] * 20
    assert await connection.command("PING") == b"PONG"
    for name in names:
        server.holder(name).ask("DEL", name)


async def test_a_slot_that_moves_is_followed(server: RedisCluster, connection: Connection) -> None:
    key = Keys("moves").workers()
    assert await connection.run("presence", [key], ["one", 60_000]) == 1
    source = server.holder(key)
    target = next(node for node in server.primaries if node is not source)
    server.begin_move(key, target)
    source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", key)
    assert await connection.command("ZCARD", key) == 1  # ASK
    server.move(key, target)
    assert await connection.run("presence", [key], ["two", 60_000]) == 2  # MOVED
    assert await connection.command("ZCARD", key) == 2
    assert server.holder(key) is target
    server.move(key, source)
    source.ask("DEL", key)


async def test_a_moving_slot_holds_a_script_up_no_longer_than_it_moves(
    server: RedisCluster, client: TurnClient
) -> None:
    place = await submit(client, conversation_id="c")
    key = client.turns.keys.turn(place.turn_id)
    source = server.holder(key)
    target = next(node for node in server.primaries if node is not source)
    server.begin_move(key, target)
    source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, "KEYS", key)
    claiming = asyncio.create_task(claim(client.turns, place))
    await eventually(lambda: _refused(source) + _refused(target) > 0)  # TRYAGAIN: one key here, one there
    server.move(key, target)
    await (await claiming).answer("moved")
    assert (await client.turn(place.turn_id)).state is TurnState.COMPLETED
    server.move(key, source)


def test_each_node_is_looked_at(server: RedisCluster, valkey: RedisServer) -> None:
    settings = ContractSettings(redis_url=server.url, broker_url=valkey.url)
    assert check_redis(settings) == []
    last = server.primaries[-1]
    last.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(ConfigError, match=f"AIFORGE_REDIS_URL: 127.0.0.1:{last.port}: maxmemory-policy"):
        check_redis(settings)
    last.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_it_needs_a_broker_of_its_own(server: RedisCluster) -> None:
    with pytest.raises(ConfigError, match="AIFORGE_BROKER_URL: not set; Celery cannot use the Redis Cluster"):
        _ = ContractSettings(redis_url=server.url).broker
    with pytest.raises(ConfigError, match="AIFORGE_BROKER_URL: Celery cannot use a Redis Cluster"):
        ContractSettings.load(redis_url=server.url, broker_url=server.url)


def _refused(node: RedisServer) -> int:
    errors: dict[str, Any] = node.ask("INFO", "errorstats")
    return int(errors.get("errorstat_TRYAGAIN", {"count": 0})["count"])
