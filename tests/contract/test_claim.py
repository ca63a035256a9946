"""Claiming: one worker at a time, all that a turn needs in one round trip, at a price that stays."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import redis

from aiforge.core.events import Reset, Started
from aiforge.core.types import ConfigError
from tests.support.servers import RedisServer
from tests.support.turns import Connect, answered, claim, crash, expire, intended, read, submit
from worker.contract.claims import Claim, Refused, new_token
from worker.contract.client import TurnClient
from worker.contract.memory.transfer import ConversationExport
from worker.contract.places import Place
from worker.contract.schemas import (
    CONVERSATION_VERSION,
    TURN_VERSION,
    ConversationSettings,
    StoredMessage,
    TurnState,
)
from worker.contract.settings import ContractSettings

pytestmark = pytest.mark.anyio


async def take(client: TurnClient, place: Place, token: str = "token") -> Claim | Refused:
    return await client.turns.claim(place, "w", intended(f"{token}.1"), token)


async def test_a_claim_brings_request_settings_and_window(client: TurnClient) -> None:
    settings = ConversationSettings(system_prompt="Be brief.", memory_k=2)
    await client.create_conversation(settings, conversation_id="c")
    for number in range(3):
        await answered(client, f"question {number}", f"answer {number}", conversation_id="c")
    place = await submit(client, "last", conversation_id="c")
    claimed = await take(client, place)
    assert isinstance(claimed, Claim)
    assert (claimed.request.message, claimed.settings, claimed.memory_k) == ("last", settings, 2)
    assert [message.content for message in claimed.window] == ["question 2", "answer 2"]
    assert (claimed.fence, claimed.attempt, claimed.suspect) == (1, 1, False)
    assert 0 <= claimed.waited < 5


async def test_a_running_turn_is_refused_to_others(client: TurnClient) -> None:
    place = await submit(client)
    assert isinstance(await take(client, place), Claim)
    assert await take(client, place, "other") == Refused("refused", "running")
    stats = await client.stats()
    assert (stats.ready, stats.running) == (0, 1)


async def test_the_same_token_gets_the_same_answer(client: TurnClient) -> None:
    place = await submit(client)
    first, again = await take(client, place), await take(client, place)
    assert isinstance(first, Claim)
    assert isinstance(again, Claim)
    assert again._replace(waited=first.waited) == first
    assert (await client.turn(place.turn_id)).attempts == 1
    assert len(await client.turns.calls(place.turn_id)) == 1


async def test_a_finished_turn_is_refused(client: TurnClient) -> None:
    place = await answered(client, "Hello?", "Hi")
    assert await take(client, place) == Refused("refused", "completed")


async def test_an_unknown_turn_is_gone(client: TurnClient) -> None:
    assert await take(client, Place("00" + "0" * 20, "default", "c")) == Refused("gone", "")


async def test_a_turn_of_a_newer_version_stays_queued(client: TurnClient, server: RedisServer) -> None:
    place = await submit(client)
    server.ask("HSET", client.turns.keys.turn(place.turn_id), "version", TURN_VERSION + 1)
    assert await take(client, place) == Refused("newer", "")
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.attempts) == (TurnState.QUEUED, 0)
    assert (await client.stats()).ready == 1


async def test_a_turn_of_a_newer_conversation_stays_queued(client: TurnClient, server: RedisServer) -> None:
    place = await submit(client)
    conversation = client.turns.keys.conversation(place.tenant, place.conversation_id)
    server.ask("HSET", conversation, "version", CONVERSATION_VERSION + 1)
    assert await take(client, place) == Refused("newer", "")
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.attempts) == (TurnState.QUEUED, 0)
    server.ask("HSET", conversation, "version", CONVERSATION_VERSION)
    assert isinstance(await take(client, place), Claim)


async def test_a_turn_that_is_too_new_is_woken_again(client: TurnClient, server: RedisServer) -> None:
    place = await submit(client)
    server.ask("HSET", client.turns.keys.turn(place.turn_id), "version", TURN_VERSION + 1)
    assert await take(client, place) == Refused("newer", "")
    for _ in range(2):
        server.ask("ZADD", client.turns.keys.ready(int(place.turn_id[:2])), "XX", 0, place.turn_id)
        found = await client.turns.reap([int(place.turn_id[:2])], "a reaper")
        assert [overdue.due for overdue in found] == [[place.turn_id]]
        assert await take(client, place) == Refused("newer", "")


async def test_the_next_attempt_begins_with_a_reset(client: TurnClient) -> None:
    place = await submit(client)
    first = await claim(client.turns, place)
    await first.tokens("half an ans")
    assert await crash(client.turns, first) == "queued"
    second = await claim(client.turns, place)
    assert (second.claim.fence, second.claim.attempt) == (2, 2)
    await second.answer("whole")
    events = [event for _, event in await read(client, place)]
    assert events[1] == Started(1)
    assert events[3:5] == [Reset(2), Started(2)]
    assert (await client.turn(place.turn_id)).attempts == 2


@pytest.mark.parametrize("max_attempts", [2, 3, 5])
async def test_the_last_attempt_is_a_suspects(connect: Connect, max_attempts: int) -> None:
    client = await connect(max_attempts=max_attempts)
    place = await submit(client)
    for _ in range(max_attempts - 1):
        running = await claim(client.turns, place)
        assert not running.claim.suspect
        await crash(client.turns, running)
    first, again = await take(client, place), await take(client, place)
    assert isinstance(first, Claim)
    assert isinstance(again, Claim)
    assert (first.suspect, again.suspect) == (True, True)


def test_one_attempt_would_prove_nothing() -> None:
    with pytest.raises(ConfigError, match=r"MAX_ATTEMPTS.*greater than or equal to 2"):
        ContractSettings(max_attempts=1)


async def test_a_lease_lasts_as_long_as_the_settings_say(client: TurnClient, server: RedisServer) -> None:
    place = await submit(client)
    before = server_ms(server)
    await take(client, place)
    until = float(server.ask("ZSCORE", client.turns.keys.leases(int(place.turn_id[:2])), place.turn_id))
    lease_ms = client.settings.lease_seconds * 1000
    assert before + lease_ms <= until <= server_ms(server) + lease_ms


async def test_a_window_is_no_longer_than_a_worker_can_take(client: TurnClient) -> None:
    """Whatever fits in a conversation: a claim that never arrived in time would be repeated for ever."""
    words = [StoredMessage(role="assistant", content=str(number) * 3_000_000) for number in range(8)]
    few = [StoredMessage(role="assistant", content=str(number)) for number in range(250)]
    settings = ConversationSettings(memory_k=1_000)
    for name, messages, before in (("long", words, 3), ("many", few, 0)):
        await client.import_conversation(
            ConversationExport(conversation_id=name, created_at=1.5e9, settings=settings, messages=messages)
        )
        claimed = (await claim(client.turns, await submit(client, conversation_id=name))).claim
        assert [message.content for message in claimed.window] == [
            message.content for message in messages[before:]
        ]
        assert claimed.before == before


async def test_the_price_of_a_claim_does_not_grow_with_the_conversation(
    client: TurnClient, server: RedisServer
) -> None:
    short = await claim_cost(client, server, "short", 10)
    long = await claim_cost(client, server, "long", 20_000)
    assert long < 3 * short, f"{short} µs with 10 messages, {long} µs with 20,000"


async def test_a_claim_asks_redis_for_the_same_whatever_the_length(
    client: TurnClient, server: RedisServer
) -> None:
    asked, brought = {}, {}
    for length in (10, 20_000):
        place = await long_conversation(client, server, f"of-{length}", length)
        await (await claim(client.turns, place)).hand_back()
        with asked_of(server) as commands:
            running = await claim(client.turns, place)
        asked[length], brought[length] = list(commands), running.claim.window
    names = [[command.split()[0] for command in commands] for commands in asked.values()]
    assert names[0] == names[1]
    (window,) = [command for command in asked[20_000] if command.startswith("LRANGE")]
    _, name, start, end = window.split()
    assert name == client.turns.keys.messages("default", "of-20000")
    assert (int(start) % 20_000, int(end) - int(start)) == (19_990, 9)
    assert brought[10] == brought[20_000]


@contextlib.contextmanager
def asked_of(server: RedisServer) -> Iterator[list[str]]:
    """Every command that scripts give meanwhile, but for wake-ups; it is there when the block is over."""
    found: list[str] = []
    client: Any = redis.Redis(port=server.port, decode_responses=True)
    with client, client.monitor() as monitor:
        yield found
        end = f"ECHO {new_token()}"
        server.ask(*end.split())
        while (seen := monitor.next_command())["command"] != end:
            if seen["client_type"] == "lua" and ":broker:" not in seen["command"]:
                found.append(seen["command"])


async def claim_cost(client: TurnClient, server: RedisServer, conversation: str, messages: int) -> float:
    """Microseconds of the server's own time for one claim, the median of 21."""
    place = await long_conversation(client, server, conversation, messages)
    await (await claim(client.turns, place)).hand_back()
    digest = client.connection.scripts["claim"].digest.encode()
    server.ask("CONFIG", "SET", "slowlog-log-slower-than", 0)
    server.ask("CONFIG", "SET", "slowlog-max-len", 1000)
    server.ask("SLOWLOG", "RESET")
    for _ in range(21):
        running = await claim(client.turns, place, token=new_token())
        await running.hand_back()
    entries = server.ask("SLOWLOG", "GET", 1000)
    server.ask("CONFIG", "SET", "slowlog-log-slower-than", 10_000)
    took = [micros for _, _, micros, command, *_ in entries if command[:2] == [b"EVALSHA", digest]]
    assert len(took) == 21
    return float(statistics.median(took))


async def long_conversation(
    client: TurnClient, server: RedisServer, conversation: str, messages: int
) -> Place:
    """A turn of a conversation with so many messages, of which a turn is given the last 10."""
    await client.create_conversation(ConversationSettings(memory_k=10), conversation_id=conversation)
    message = msgspec.json.encode(StoredMessage(role="user", content="x" * 300))
    for _ in range(0, messages, 1000):
        stored = [message] * min(1000, messages)
        server.ask("RPUSH", client.turns.keys.messages("default", conversation), *stored)
    return await submit(client, conversation_id=conversation)


async def test_a_heartbeat_renews_what_is_held_and_names_what_is_lost(
    client: TurnClient, server: RedisServer
) -> None:
    places = [await submit(client) for _ in range(3)]
    held = {place.turn_id: (await claim(client.turns, place)).claim.fence for place in places}
    lost = places[0]
    await expire(client.turns, lost.turn_id, int(lost.turn_id[:2]))
    await client.turns.requeue(lost, None)
    await expire(client.turns, places[1].turn_id, int(places[1].turn_id[:2]))
    assert await client.turns.heartbeat(held) == [lost.turn_id]
    renewed = server.ask("ZSCORE", client.turns.keys.leases(int(places[1].turn_id[:2])), places[1].turn_id)
    assert float(renewed) > server_ms(server)
    assert await client.turns.heartbeat({places[2].turn_id: 7}) == [places[2].turn_id]


def server_ms(server: RedisServer) -> int:
    seconds, micros = server.ask("TIME")
    return int(seconds) * 1000 + int(micros) // 1000
