"""How long conversations live, how they are listed, and how they are erased for good."""

from __future__ import annotations

import asyncio
import time
from decimal import Decimal

import pytest

from tests.support.servers import RedisServer
from tests.support.turns import claim, crash, die, paid, submit
from tests.support.waiting import wait_until
from worker.contract.client import TurnClient
from worker.contract.errors import Gone, NotFound
from worker.contract.ids import shard_of
from worker.contract.schemas import ConversationSettings, Erasure, TurnRequest, TurnState
from worker.contract.server.link import Argument
from worker.contract.stats import Stats

pytestmark = pytest.mark.anyio
MARK = "a-marked-text-that-must-go"


def lifetimes(server: RedisServer, client: TurnClient) -> dict[str, int]:
    """Milliseconds to live of all keys but the indexes and sums of a shard, which hold no text."""
    names = [name.decode() for name in server.ask("KEYS", f"*{client.settings.namespace}:*")]
    indexes = ("leases", "fences", "ready", "wakes", "due", "dead", "totals", "reaper", "convs:default")
    return {
        name: server.ask("PTTL", name)
        for name in names
        if not name.endswith(indexes) and ":usage:" not in name
    }


async def test_everything_lives_as_long_as_the_conversation_says(
    client: TurnClient, server: RedisServer
) -> None:
    await client.create_conversation(ConversationSettings(ttl=60), conversation_id="c")
    for number in range(2):
        place = await submit(client, conversation_id="c")
        running = await claim(client.turns, place)
        kept = {name: ttl for name, ttl in lifetimes(server, client).items() if ":broker:" not in name}
        assert {name for name, ttl in kept.items() if ttl == -1} >= {
            client.turns.keys.conversation("default", "c")
        }
        await running.answer(str(number))
        lives = {name: ttl for name, ttl in lifetimes(server, client).items() if ":broker:" not in name}
        assert len(lives) >= 6
        assert all(0 < ttl <= 60_000 for ttl in lives.values()), lives


async def test_an_erased_conversation_leaves_no_text(client: TurnClient, server: RedisServer) -> None:
    done = await submit(client, MARK, conversation_id="c", idempotency_key="k")
    first = await claim(client.turns, done)
    await first.tokens(MARK)
    await first.answer(MARK)
    before = await client.stats()
    active, waiting = [await submit(client, MARK, conversation_id="c") for _ in range(2)]
    running = await claim(client.turns, active)
    receipt = await client.erase("c")
    assert receipt == Erasure(conversation_id="c", messages=2, turns=3, stopped=1)
    assert MARK.encode() not in everything(server)
    assert not (await running.answer(MARK, calls=[paid(running.call_id)])).accepted
    assert not await running.tokens(MARK)
    assert await client.turns.heartbeat({active.turn_id: running.claim.fence}) == [active.turn_id]
    assert MARK.encode() not in everything(server)
    for place in (done, active, waiting):
        with pytest.raises(NotFound):
            await client.turn(place.turn_id)
    with pytest.raises(NotFound):
        await client.conversation("c")
    with pytest.raises(NotFound):
        await client.erase("c")
    assert spent(await client.stats()) == 2 * spent(before) > 0


def spent(stats: Stats) -> Decimal:
    return sum((sums.get("usd", Decimal(0)) for sums in stats.totals.values()), Decimal(0))


def everything(server: RedisServer) -> bytes:
    texts = []
    for name in server.ask("KEYS", "*"):
        kind = server.ask("TYPE", name)
        command = {
            b"hash": ("HGETALL", name),
            b"list": ("LRANGE", name, 0, -1),
            b"zset": ("ZRANGE", name, 0, -1),
            b"set": ("SMEMBERS", name),
            b"string": ("GET", name),
        }[kind]
        texts.append(repr((name, server.ask(*command))).encode())
    return b"\n".join(texts)


async def test_a_repetition_does_not_bring_an_erased_turn_back(client: TurnClient) -> None:
    request = TurnRequest(message=MARK)
    await client.submit(request, conversation_id="c", idempotency_key="k")
    await client.erase("c")
    with pytest.raises(Gone):
        await client.submit(request, conversation_id="c", idempotency_key="k")
    await submit(client, conversation_id="c")
    assert (await client.conversation("c")).messages == 0


async def test_of_many_turns_none_is_left(client: TurnClient, server: RedisServer) -> None:
    """And whoever has lost the reply gets it again."""
    keys, shard = client.turns.keys, shard_of("default", "c")
    turns = 520
    await asyncio.gather(
        *(
            client.submit(TurnRequest(message=MARK, run_after=time.time() + 60), conversation_id="c")
            for _ in range(turns)
        )
    )
    names = keys.of_erasure("default", "c")
    arguments: list[Argument] = ["c", keys.gone(shard), 60_000, keys.control(), "word"]
    for _ in range(2):
        assert await client.connection.run("erase", names, arguments) == [0, turns, 0, 0]
    assert MARK.encode() not in everything(server)
    assert server.ask("EXISTS", keys.due(shard), keys.convs("default", shard), *names[:5]) == 0
    assert len(server.ask("KEYS", f"{keys.gone(shard)}*")) == turns + 1
    with pytest.raises(NotFound):
        await client.erase("c")


def a_millisecond_passes(server: RedisServer) -> None:
    """Turns of one millisecond are listed by their conversations' ids."""

    def now() -> int:
        return int(server.ask("TIME")[1]) // 1000

    began = now()
    wait_until(lambda: now() != began)


async def test_conversations_are_listed_by_their_latest_turn(client: TurnClient, server: RedisServer) -> None:
    for name in ("a", "b", "c", "a"):
        await submit(client, conversation_id=name)
        a_millisecond_passes(server)
    await client.create_conversation(ConversationSettings(), conversation_id="d")
    whole = await client.conversations.latest("default", None, 100)
    assert [conversation.conversation_id for _, conversation in whole] == ["d", "a", "c", "b"]
    page = await client.conversations.latest("default", None, 2)
    rest = await client.conversations.latest("default", (page[-1][0], page[-1][1].conversation_id), 2)
    assert len(page) == 2
    assert {conversation.conversation_id for _, conversation in rest} <= {"b", "c"}
    await client.erase("a")
    assert "a" not in [
        conversation.conversation_id
        for _, conversation in await client.conversations.latest("default", None, 100)
    ]


async def test_a_dead_letter_is_posted_again_once(client: TurnClient) -> None:
    place = await submit(client, conversation_id="c")
    for _ in range(2):
        await crash(client.turns, await claim(client.turns, place))
    assert await die(client.turns, await claim(client.turns, place)) == ("dead", None)
    (letter,) = await client.dead_letters()
    assert (letter.turn_id, letter.error and letter.error.code) == (place.turn_id, "dead_lettered")
    new = await client.requeue_dead(place.turn_id)
    assert (new.conversation_id, new.state) == ("c", TurnState.QUEUED)
    assert new.turn_id != place.turn_id
    assert (await client.requeue_dead(place.turn_id)).turn_id == new.turn_id
    assert await client.dead_letters() == []
    with pytest.raises(NotFound):
        await client.drop_dead(place.turn_id)
    with pytest.raises(NotFound):
        await client.requeue_dead(new.turn_id)


async def test_a_dead_letter_of_a_turn_that_was_not_to_wait_joins_the_line(client: TurnClient) -> None:
    turn = await client.submit(TurnRequest(message="Now?", on_busy="reject"), conversation_id="c")
    place = await client.turns.place(turn.turn_id)
    for _ in range(2):
        await crash(client.turns, await claim(client.turns, place))
    await die(client.turns, await claim(client.turns, place))
    await submit(client, conversation_id="c")
    new = await client.requeue_dead(place.turn_id)
    assert (await client.line("c")).waiting == [new.turn_id]


async def test_conversations_of_one_moment_are_listed_once_each(client: TurnClient) -> None:
    names = [f"c{number:02d}" for number in range(30)]
    for name in names:
        await client.create_conversation(ConversationSettings(), conversation_id=name)
        index = client.turns.keys.convs("default", shard_of("default", name))
        await client.connection.command("ZADD", index, 5_000, name)
    found: list[str] = []
    before: tuple[int, str] | None = None
    while page := await client.conversations.latest("default", before, 7):
        found += [conversation.conversation_id for _, conversation in page]
        before = page[-1][0], found[-1]
    assert found == sorted(names, reverse=True)
