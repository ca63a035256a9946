"""The flusher: first tokens at once, the others in company, each once and in order whatever Redis does."""

from __future__ import annotations

import asyncio

import pytest

from aiforge.core.events import Done, Event, Message, Token, encode
from tests.support.servers import RedisServer
from tests.support.turns import Running, claim, crash, read, submit
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.records import TurnOutcome
from worker.contract.schemas import TurnState
from worker.contract.settings import ContractSettings
from worker.running.stream import Flusher, Stream

pytestmark = pytest.mark.anyio


async def begun(client: TurnClient) -> tuple[Running, Stream]:
    running = await claim(client.turns, await submit(client))
    return running, Stream(running.claim)


async def commit(flusher: Flusher, running: Running, stream: Stream) -> None:
    """End a turn as a worker does."""
    unsent = await flusher.take(stream)
    ending = [encode(Message("x")), encode(Done())]
    done = await running.store.finish(
        running.claim,
        TurnState.COMPLETED,
        TurnOutcome(answer="x"),
        events=unsent + ending,
        position=stream.sent,
        calls=[],
    )
    assert done.accepted


def scripts(server: RedisServer) -> int:
    """How many scripts the server has run."""
    return int(server.ask("INFO", "commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def texts(events: list[tuple[int, Event]]) -> list[str]:
    return [event.text for _, event in events if isinstance(event, Token)]


async def test_events_reach_the_log_in_order(client: TurnClient) -> None:
    flusher = Flusher(client.turns)
    (one, first), (two, second) = await begun(client), await begun(client)
    for number in range(200):
        flusher.push(first, Token(f"1.{number}"))
        flusher.push(second, Token(f"2.{number}"))
        if number % 40 == 0:
            await asyncio.sleep(0)
    await eventually(lambda: (first.sent, second.sent) == (200, 200))
    await commit(flusher, one, first)
    await commit(flusher, two, second)
    assert texts(await read(client, one.claim.place)) == [f"1.{number}" for number in range(200)]
    assert texts(await read(client, two.claim.place)) == [f"2.{number}" for number in range(200)]


async def test_events_of_many_turns_travel_together(client: TurnClient, server: RedisServer) -> None:
    """The first token of a stream goes at once, what follows within a few milliseconds in one script each."""
    flusher = Flusher(client.turns)
    turns = [await begun(client) for _ in range(8)]
    before = scripts(server)
    for number in range(100):
        for _, stream in turns:
            flusher.push(stream, Token(str(number)))
    await eventually(lambda: all(stream.sent == 100 for _, stream in turns))
    assert scripts(server) - before <= 2 * len(turns)
    flusher.push(turns[0][1], Token("one more"))
    assert turns[0][1].pending
    await eventually(lambda: turns[0][1].sent == 101)


async def test_what_is_taken_is_not_sent(client: TurnClient) -> None:
    flusher = Flusher(client.turns)
    running, stream = await begun(client)
    for number in range(50):
        flusher.push(stream, Token(str(number)))
        if number == 20:
            await eventually(lambda: stream.sent > 0)
    await commit(flusher, running, stream)
    events = await read(client, running.claim.place)
    assert texts(events) == [str(number) for number in range(50)]
    assert events[-1][1] == Done()
    assert stream.pending == []


async def test_more_events_than_one_call_takes(client: TurnClient) -> None:
    flusher = Flusher(client.turns)
    running, stream = await begun(client)
    for number in range(2_500):
        flusher.push(stream, Token(str(number)))
    await eventually(lambda: stream.sent == 2_500)
    await commit(flusher, running, stream)
    assert texts(await read(client, running.claim.place)) == [str(number) for number in range(2_500)]


async def test_an_attempt_that_lost_its_turn_is_told(client: TurnClient) -> None:
    flusher = Flusher(client.turns)
    running, stream = await begun(client)
    (other, sound), lost = await begun(client), asyncio.Event()
    stream.on_lost = lost.set
    await crash(client.turns, running)
    flusher.push(stream, Token("late"))
    flusher.push(sound, Token("in time"))
    async with asyncio.timeout(5):
        await lost.wait()
    assert stream.lost
    flusher.push(stream, Token("later"))
    assert (stream.pending, await flusher.take(stream)) == ([], [])
    await eventually(lambda: sound.sent == 1)
    await commit(flusher, other, sound)
    assert texts(await read(client, other.claim.place)) == ["in time"]


async def test_an_outage_delays_events_and_loses_none(namespace: str) -> None:
    with RedisServer(options={"appendfsync": "always"}) as own:
        settings = ContractSettings(redis_url=own.url, namespace=namespace, lease_seconds=60)
        async with await TurnClient.connect(settings) as client:
            flusher = Flusher(client.turns)
            running, stream = await begun(client)
            for number in range(300):
                flusher.push(stream, Token(str(number)))
                if number == 100:
                    await eventually(lambda: stream.sent > 0)
                    own.kill()
                if number == 200:
                    await asyncio.to_thread(own.start)
                await asyncio.sleep(0)
            await eventually(lambda: stream.sent == 300)
            await commit(flusher, running, stream)
            assert texts(await read(client, running.claim.place)) == [str(number) for number in range(300)]


async def test_a_full_server_delays_events_and_loses_none(namespace: str) -> None:
    with RedisServer() as own:
        settings = ContractSettings(redis_url=own.url, namespace=namespace, lease_seconds=60)
        async with await TurnClient.connect(settings) as client:
            flusher = Flusher(client.turns)
            running, stream = await begun(client)
            own.ask("CONFIG", "SET", "maxmemory", 1)
            flusher.push(stream, Token("a"))
            flusher.push(stream, Token("b"))
            await eventually(lambda: "errorstat_OOM" in own.ask("INFO", "errorstats"))
            assert not stream.lost
            own.ask("CONFIG", "SET", "maxmemory", 0)
            await eventually(lambda: stream.sent == 2)
            await commit(flusher, running, stream)
            assert texts(await read(client, running.claim.place)) == ["a", "b"]
