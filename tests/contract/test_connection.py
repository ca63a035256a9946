"""A Redis that forgets its scripts or loses a reply."""

from __future__ import annotations

import itertools

import pytest
from redis.exceptions import NoScriptError

from aiforge.core.events import Token
from tests.support.proxy import Fate, Proxy
from tests.support.servers import RedisServer
from tests.support.turns import Connect, Running, claim, intended, paid, read, submit
from worker.contract.claims import Claim
from worker.contract.client import TurnClient
from worker.contract.errors import Unavailable
from worker.contract.places import new_place
from worker.contract.schemas import TurnRequest
from worker.contract.server.connection import Connection
from worker.contract.store import TurnStore

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
    granted = await store.claim(place, "w", intended(f"{conversation}.1"), "t")
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


async def test_a_password_is_never_shown() -> None:
    connection = Connection("redis://user:secret@127.0.0.1:1/0")
    with pytest.raises(Unavailable) as error:
        await connection.command("PING")
    assert "secret" not in str(error.value)
    assert "redis://127.0.0.1:1/0" in str(error.value)
    await connection.close()


async def test_what_is_forbidden_for_a_while_is_unavailable(server: RedisServer, connect: Connect) -> None:
    """Whoever changes an ACL by mistake changes it back; no work is given up for it meanwhile."""
    server.ask("ACL", "SETUSER", "tenant", "on", ">secret", "~*", "&*", "+@all")
    try:
        client = await connect(redis_url=f"redis://tenant:secret@127.0.0.1:{server.port}/0")
        running = await claim(client.turns, await submit(client))
        for forbidden in ("evalsha", "rpush"):
            server.ask("ACL", "SETUSER", "tenant", f"-{forbidden}")
            with pytest.raises(Unavailable, match="does not let us"):
                await running.tokens("a")
            server.ask("ACL", "SETUSER", "tenant", f"+{forbidden}")
        server.ask("ACL", "SETUSER", "tenant", "-hmget")
        with pytest.raises(Unavailable, match="does not let us"):
            await client.turns.place(running.claim.place.turn_id)
        server.ask("ACL", "SETUSER", "tenant", "+hmget")
        assert await running.tokens("a")
        assert (await running.answer("a")).accepted
    finally:
        server.ask("ACL", "DELUSER", "tenant")
