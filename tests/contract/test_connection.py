"""A Redis that forgets its scripts, goes away, does not answer, is full, or loses a reply."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest
from redis.exceptions import NoScriptError

from aiforge.core.events import Token
from tests.support import leaks
from tests.support.proxy import Fate, Proxy
from tests.support.servers import RedisServer
from tests.support.turns import Connect, Running, answered, claim, intended, paid, read, submit
from worker.contract.client import TurnClient
from worker.contract.connection import Connection
from worker.contract.errors import Unavailable
from worker.contract.schemas import TurnRequest, TurnState
from worker.contract.settings import ContractSettings
from worker.contract.store import Claim, TurnStore, new_place

pytestmark = pytest.mark.anyio


async def test_forgotten_scripts_are_sent_again(client: TurnClient, server: RedisServer) -> None:
    server.ask("SCRIPT", "FLUSH")
    with pytest.raises(NoScriptError):
        server.ask("EVALSHA", client.connection.scripts["submit"].digest, 0)
    place = await submit(client)
    server.ask("SCRIPT", "FLUSH")
    running = await claim(client.turns, place)
    server.ask("SCRIPT", "FLUSH")
    assert await running.tokens("a")
    server.ask("SCRIPT", "FLUSH")
    assert (await running.answer("a")).accepted


@pytest.mark.parametrize("how", ["cut", "drop"])
async def test_any_reply_can_be_lost(how: Fate, client: TurnClient, server: RedisServer) -> None:
    """For each reply of a turn's life: it is lost, the connection asks again, and the end is the same."""
    reference = await life(client.turns, client, "reference")
    for number in itertools.count():
        async with Proxy(server.port) as proxy:
            lost = lose(proxy, number, how)
            connection = Connection(proxy.url, timeout=0.2)
            store = TurnStore(connection, client.settings)
            assert await life(store, client, f"life-{number}") == reference
            await connection.close()
        if not lost:
            assert number > 8
            return


async def life(store: TurnStore, sound: TurnClient, conversation: str) -> tuple[object, ...]:
    """Submit, claim, append and commit over one connection, and what is there afterwards."""
    place, request = new_place("default", conversation), TurnRequest(message="Hello?")
    await store.submit(place, request, digest="d")
    granted = await store.claim(place, "w", intended(f"{conversation}.1"), "t", suspect_busy=False)
    assert isinstance(granted, Claim)
    running = Running(store, granted)
    assert await running.tokens("a", "b")
    assert await running.say(Token("c"))
    assert (await running.answer("abc", calls=[paid(f"{conversation}.1")])).accepted
    turn = await sound.turn(place.turn_id)
    calls = [call.outcome for call in await sound.turns.calls(place.turn_id)]
    messages = [message.content for message in await sound.messages(conversation)]
    return turn.state, turn.answer, turn.attempts, calls, messages, await read(sound, place)


def lose(proxy: Proxy, number: int, how: Fate) -> list[bytes]:
    """Let the reply of this number be lost; the list holds it afterwards."""
    lost: list[bytes] = []
    count = itertools.count()

    def fate(frame: bytes) -> Fate:
        if next(count) != number:
            return "pass"
        lost.append(frame)
        return how

    proxy.fate = fate
    return lost


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
            seen = leaks.picture(own.port, namespace)
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
    assert (await client.stats()).ready == 1


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


async def test_a_replica_accepts_nothing(namespace: str) -> None:
    with RedisServer() as own:
        own.ask("REPLICAOF", "127.0.0.1", 1)
        settings = ContractSettings(redis_url=own.url, namespace=namespace)
        async with await TurnClient.connect(settings) as client:
            with pytest.raises(Unavailable, match="cannot store more"):
                await submit(client)


async def test_a_password_is_never_shown() -> None:
    connection = Connection("redis://user:secret@127.0.0.1:1/0")
    with pytest.raises(Unavailable) as error:
        await connection.command("PING")
    assert "secret" not in str(error.value)
    assert "redis://127.0.0.1:1/0" in str(error.value)
    await connection.close()
