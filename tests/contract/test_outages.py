"""A Redis that goes away, does not answer, or is full; one kind of server is enough."""

from __future__ import annotations

import asyncio
import shutil
import time

import pytest

from tests.support import leaks
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.turns import Connect, answered, claim, submit
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.errors import Unavailable
from worker.contract.schemas import TurnState
from worker.contract.settings import ContractSettings

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(valkey: RedisServer) -> RedisServer:
    return valkey


async def test_a_server_that_is_gone(namespace: str) -> None:
    """Refused connections: Unavailable in time, and again available without a new client."""
    with RedisServer() as own:
        settings = ContractSettings(redis_url=own.url, namespace=namespace)
        async with await TurnClient.connect(settings) as client:
            place = await submit(client)
            own.kill()
            began = time.monotonic()
            with pytest.raises(Unavailable, match="does not answer"):
                await client.turn(place.turn_id)
            assert 2 < time.monotonic() - began < 6
            assert "does not answer" in (await client.ready() or "")
            own.start()
            assert await client.ready() is None
            assert (await client.turn(place.turn_id)).state is TurnState.QUEUED
            seen = leaks.picture(own, namespace)
            assert leaks.problems(seen) == []


async def test_a_short_absence_goes_unnoticed(namespace: str) -> None:
    with RedisServer() as own:
        settings = ContractSettings(redis_url=own.url, namespace=namespace)
        async with await TurnClient.connect(settings) as client:
            place = await submit(client)
            own.kill()
            asking = asyncio.create_task(client.turn(place.turn_id))
            await asyncio.to_thread(own.start)
            assert (await asking).state is TurnState.QUEUED


async def test_a_server_that_does_not_answer(
    server: RedisServer, connect: Connect, client: TurnClient
) -> None:
    """The connection stands and nothing comes back: what was asked may have been done, once."""
    async with Proxy(server.port) as proxy:
        deaf = await connect(redis_url=proxy.url, broker_url=server.url)
        proxy.fate = lambda _frame: "drop"
        began = time.monotonic()
        with pytest.raises(Unavailable, match="does not answer"):
            await submit(deaf, conversation_id="c")
        assert time.monotonic() - began < 6.5
        proxy.fate = lambda _frame: "pass"
        assert await deaf.ready() is None
        await deaf.close()
    assert (await client.stats()).ready <= 1


async def test_a_full_server_accepts_nothing_and_loses_nothing(namespace: str) -> None:
    with RedisServer() as own:
        settings = ContractSettings(redis_url=own.url, namespace=namespace)
        async with await TurnClient.connect(settings) as client:
            place = await answered(client, "Hello?", "Hi", conversation_id="c")
            running = await claim(client.turns, await submit(client, conversation_id="d"))
            own.ask("CONFIG", "SET", "maxmemory", 1)
            began = time.monotonic()
            with pytest.raises(Unavailable, match="cannot store more"):
                await submit(client, "one more", conversation_id="c")
            with pytest.raises(Unavailable, match="cannot store more"):
                await running.tokens("a")
            with pytest.raises(Unavailable, match="cannot store more"):
                await running.answer("a")
            assert time.monotonic() - began < 1
            assert (await client.conversation("c")).messages == 2
            assert (await client.turn(place.turn_id)).answer == "Hi"
            own.ask("CONFIG", "SET", "maxmemory", 0)
            assert await running.tokens("a")
            assert (await running.answer("a")).accepted
            await submit(client, "one more", conversation_id="c")


async def test_a_server_whose_disk_is_full_accepts_nothing(namespace: str) -> None:
    with RedisServer(options={"appendonly": "no", "save": "3600 1000000"}) as own:
        settings = ContractSettings(redis_url=own.url, namespace=namespace)
        async with await TurnClient.connect(settings) as client:
            running = await claim(client.turns, await submit(client))
            shutil.rmtree(own.folder)
            own.ask("BGSAVE")
            await eventually(lambda: own.ask("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
            with pytest.raises(Unavailable, match="MISCONF"):
                await submit(client)
            with pytest.raises(Unavailable, match="MISCONF"):
                await running.tokens("a")
            own.ask("CONFIG", "SET", "save", "")
            assert await running.tokens("a")


async def test_a_replica_accepts_nothing(namespace: str) -> None:
    with RedisServer() as own:
        own.ask("REPLICAOF", "127.0.0.1", 1)
        settings = ContractSettings(redis_url=own.url, namespace=namespace)
        async with await TurnClient.connect(settings) as client:
            with pytest.raises(Unavailable, match="cannot store more"):
                await submit(client)


async def test_a_broker_that_is_away_stops_nobody(client: TurnClient, connect: Connect) -> None:
    """The wake-up is lost, the turn is not: a reaper finds it ready."""
    mute = await connect(broker_url="redis://127.0.0.1:1/0")
    place = await submit(mute)
    assert (await client.turn(place.turn_id)).turn_id == place.turn_id
    with pytest.raises(Unavailable):
        await mute.stats()
    await mute.close()
