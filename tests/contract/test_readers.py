"""Reading a turn's events: every one once and in order, whenever a reader joins and whatever is lost."""

from __future__ import annotations

import asyncio
import time

import pytest

from aiforge.core.events import Done, Event, Gap, Message, Reset, Token
from tests.support.proxy import Fate, Proxy, is_message
from tests.support.servers import RedisServer
from tests.support.turns import Connect, Running, answered, claim, crash, read, submit
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.errors import NotFound
from worker.contract.places import Place
from worker.contract.schemas import TurnState

pytestmark = pytest.mark.anyio

Entries = list[tuple[int, Event]]


def text(entries: Entries) -> str:
    return "".join(event.text for _, event in entries if isinstance(event, Token))


def sequence(entries: Entries) -> list[int]:
    return [number for number, _ in entries]


class Following:
    """A reader at work; `entries` grows as events come."""

    def __init__(self, client: TurnClient, place: Place, after: int = 0) -> None:
        self.entries: Entries = []
        self._task = asyncio.create_task(self._read(client, place, after))

    async def _read(self, client: TurnClient, place: Place, after: int) -> None:
        async for entry in client.events(place.turn_id, after=after):
            self.entries.append(entry)

    async def end(self, seconds: float = 10) -> Entries:
        async with asyncio.timeout(seconds):
            await self._task
        return self.entries


async def spoken(client: TurnClient, chunks: int, **options: str) -> tuple[Running, str]:
    """A turn that has said so many chunks."""
    running = await claim(client.turns, await submit(client, **options))
    await running.tokens(*(f"{number} " for number in range(chunks)))
    return running, "".join(f"{number} " for number in range(chunks))


async def test_the_rest_of_a_turn_that_is_over(client: TurnClient) -> None:
    place = await answered(client, "Hello?", "Hi")
    whole = await read(client, place)
    assert sequence(whole) == [1, 2, 3, 4]
    began = time.monotonic()
    assert await read(client, place, after=3) == whole[3:]
    assert await read(client, place, after=2) == whole[2:]
    assert await read(client, place, after=4) == whole[3:]
    assert await read(client, place, after=4_000) == whole[3:]
    assert time.monotonic() - began < 1


async def test_a_thousand_chunks_resumed_after_each(client: TurnClient) -> None:
    running, _ = await spoken(client, 1_000)
    await running.answer("done")
    whole = await read(client, running.claim.place)
    assert sequence(whole) == list(range(1, 1_005))
    for after in range(0, 1_004, 7):
        assert await read(client, running.claim.place, after=after) == whole[after:]


async def test_a_reader_before_during_and_after(client: TurnClient) -> None:
    place = await submit(client)
    before = Following(client, place)
    await eventually(lambda: len(before.entries) == 1)
    running = await claim(client.turns, place)
    await running.tokens("a", "b")
    during = Following(client, place)
    resumed = Following(client, place, after=3)
    await eventually(lambda: len(during.entries) == 4 and len(before.entries) == 4)
    await running.tokens("c")
    await running.answer("abc")
    whole = await read(client, place)
    assert await before.end() == whole
    assert await during.end() == whole
    assert await resumed.end() == whole[3:]
    assert text(whole) == "abc"


async def test_readers_of_another_process(client: TurnClient, connect: Connect) -> None:
    place = await submit(client)
    other = await connect()
    following = Following(other, place)
    running = await claim(client.turns, place)
    await running.tokens("a")
    await running.answer("a")
    assert await following.end() == await read(client, place)


async def test_a_lost_publish_costs_a_moment(
    server: RedisServer, connect: Connect, client: TurnClient
) -> None:
    """Every published message between server and reader is swallowed."""
    swallowed = 0

    def fate(frame: bytes) -> Fate:
        nonlocal swallowed
        swallowed += is_message(frame)
        return "drop" if is_message(frame) else "pass"

    async with Proxy(server.port) as proxy:
        proxy.fate = fate
        deaf = await connect(redis_url=proxy.url)
        place = await submit(client)
        following = Following(deaf, place)
        await eventually(lambda: following.entries)
        running = await claim(client.turns, place)
        for number in range(20):
            await running.tokens(str(number))
        began = time.monotonic()
        await running.answer("done")
        entries = await following.end()
        assert time.monotonic() - began < 2
        assert swallowed > 20
        await deaf.close()
    assert entries == await read(client, place)
    assert sequence(entries) == list(range(1, 25))


async def test_some_publishes_are_lost(server: RedisServer, connect: Connect, client: TurnClient) -> None:
    """Every third message is missing: a reader goes back to the log and says nothing twice."""
    count = 0

    def fate(frame: bytes) -> Fate:
        nonlocal count
        count += is_message(frame)
        return "drop" if is_message(frame) and count % 3 == 0 else "pass"

    async with Proxy(server.port) as proxy:
        proxy.fate = fate
        deaf = await connect(redis_url=proxy.url)
        place = await submit(client)
        following = Following(deaf, place)
        running = await claim(client.turns, place)
        for number in range(50):
            await running.tokens(str(number))
        await running.answer("done")
        assert await following.end() == await read(client, place)
        await deaf.close()


async def test_a_broken_subscription_is_taken_up_again(client: TurnClient, server: RedisServer) -> None:
    place = await submit(client)
    following = Following(client, place)
    await eventually(lambda: following.entries)
    running = await claim(client.turns, place)
    for number in range(30):
        if number % 10 == 5:
            server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        await running.tokens(str(number))
    await running.answer("done")
    assert await following.end() == await read(client, place)
    later = await submit(client)
    fresh = Following(client, later)
    await eventually(lambda: subscribers(server, client, later) == 1)
    await (await claim(client.turns, later)).answer("Hi")
    assert sequence(await fresh.end()) == [1, 2, 3, 4]


async def test_a_cursor_older_than_the_log_meets_a_gap(connect: Connect) -> None:
    client = await connect(stream_keep=100)
    running, _ = await spoken(client, 300)
    entries = Following(client, running.claim.place, after=10)
    await eventually(lambda: len(entries.entries) == 101)
    await running.answer("done")
    got = await entries.end()
    assert got[0] == (202, Gap(11, 202))
    assert sequence(got[1:]) == list(range(203, 305))
    late = await read(client, running.claim.place, after=10)
    assert late[0] == (204, Gap(11, 204))
    assert sequence(late[1:]) == list(range(205, 305))
    assert sequence(await read(client, running.claim.place, after=204)) == list(range(205, 305))


async def test_a_second_attempt_is_one_reset_and_the_whole_answer(client: TurnClient) -> None:
    place = await submit(client)
    following = Following(client, place)
    first = await claim(client.turns, place)
    await first.tokens("half ", "an ")
    await eventually(lambda: len(following.entries) == 4)
    await crash(client.turns, first)
    second = await claim(client.turns, place)
    await second.tokens("the ", "whole")
    await second.answer("the whole")
    entries = await following.end()
    at = [event for _, event in entries].index(Reset(2))
    assert text(entries[at:]) == "the whole"
    assert [event for _, event in entries][-2:] == [Message("the whole"), Done()]
    assert sequence(entries) == list(range(1, len(entries) + 1))


async def test_any_text_survives(client: TurnClient) -> None:
    pieces = ["日本", "😀", "\u0085\u2028", "é", "\x00\x1f", 'a\nb\r\n"\\', "\ud7ff\ue000"]
    place = await submit(client)
    following = Following(client, place)
    running = await claim(client.turns, place)
    for piece in pieces:
        await running.tokens(piece)
    await running.answer("".join(pieces))
    entries = await following.end()
    assert text(entries) == "".join(pieces)
    assert await read(client, place) == entries


async def test_many_readers_share_one_connection(client: TurnClient, server: RedisServer) -> None:
    places = [await submit(client) for _ in range(20)]
    readers = [Following(client, place) for place in places for _ in range(5)]
    for place in places:
        running = await claim(client.turns, place)
        await running.tokens(place.turn_id)
        await running.answer(place.turn_id)
    for number, reader in enumerate(readers):
        assert text(await reader.end()) == places[number // 5].turn_id
    assert len(server.ask("CLIENT", "LIST", "TYPE", "pubsub").splitlines()) == 1
    assert server.ask("PUBSUB", "CHANNELS", "*events*") == []


async def test_a_slow_reader_misses_nothing(client: TurnClient) -> None:
    place = await submit(client)
    events = client.events(place.turn_id)
    assert (await anext(events))[0] == 1
    running = await claim(client.turns, place)
    for number in range(600):
        await running.tokens(str(number))
    await running.answer("done")
    rest = [entry async for entry in events]
    assert rest == (await read(client, place))[1:]
    assert sequence(rest) == list(range(2, 605))


async def test_waiting_for_the_end(client: TurnClient) -> None:
    place = await submit(client)
    began = time.monotonic()
    assert (await client.wait(place.turn_id, 0.05)).state is TurnState.QUEUED
    assert time.monotonic() - began < 1
    waiting = asyncio.create_task(client.wait(place.turn_id, 10))
    running = await claim(client.turns, place)
    await running.tokens("a")
    await running.answer("a")
    turn = await waiting
    assert (turn.state, turn.answer) == (TurnState.COMPLETED, "a")
    assert (await client.wait(place.turn_id, 10)).answer == "a"
    with pytest.raises(NotFound):
        await client.wait("00" + "0" * 20, 1)


async def test_unknown_turns_have_no_events(client: TurnClient) -> None:
    with pytest.raises(NotFound):
        async for _ in client.events("00" + "0" * 20):
            pass
    with pytest.raises(NotFound):
        client.events("../x")


def subscribers(server: RedisServer, client: TurnClient, place: Place) -> int:
    return int(server.ask("PUBSUB", "NUMSUB", client.turns.keys.events(place.turn_id))[1])
