"""Cancelling: at once while a turn waits, through its worker while it runs, never after its end."""

from __future__ import annotations

import asyncio

import pytest

from aiforge.core.events import Cancelled, Queued
from tests.support.servers import RedisServer
from tests.support.turns import answered, claim, crash, read, state, submit
from worker.contract.client import TurnClient
from worker.contract.errors import NotFound
from worker.contract.readers import Listener
from worker.contract.records import TurnOutcome
from worker.contract.schemas import TurnFailure, TurnState

pytestmark = pytest.mark.anyio


async def test_a_queued_turn_ends_at_once(client: TurnClient) -> None:
    place = await submit(client, conversation_id="c")
    following = await submit(client, conversation_id="c")
    turn = await client.cancel(place.turn_id)
    assert turn.state is TurnState.CANCELLED
    assert turn.error is not None
    assert turn.error.code == "cancelled"
    assert [event for _, event in await read(client, place)] == [Queued(), Cancelled()]
    assert await client.messages("c") == []
    await (await claim(client.turns, following)).answer("mine now")


async def test_a_waiting_turn_leaves_the_line(client: TurnClient) -> None:
    first, second, third = [await submit(client, conversation_id="c") for _ in range(3)]
    await client.cancel(second.turn_id)
    assert (await (await claim(client.turns, first)).answer("1")).following == third.turn_id
    assert await state(client, second) is TurnState.CANCELLED


async def test_a_running_turn_is_asked_through_the_control_channel(
    client: TurnClient, server: RedisServer
) -> None:
    place = await submit(client)
    running = await claim(client.turns, place)
    listener = Listener(client.connection, client.turns.keys)
    async with listener.subscribe(client.turns.keys.control()) as control:
        assert (await client.cancel(place.turn_id)).state is TurnState.RUNNING
        async with asyncio.timeout(5):
            assert await control.get() == f"{place.turn_id} cancel".encode()
    await listener.close()
    other = await submit(client)
    await claim(client.turns, other)
    assert await client.turns.stops_asked([other.turn_id, place.turn_id]) == {place.turn_id: "cancel"}
    outcome = TurnOutcome(error=TurnFailure("cancelled", "the turn was cancelled"))
    assert (await running.finish(TurnState.CANCELLED, outcome, events=[Cancelled()])).accepted
    assert server.ask("HEXISTS", client.turns.keys.turn(place.turn_id), "cancel") == 0
    assert await state(client, place) is TurnState.CANCELLED


async def test_a_cancellation_outlives_a_crash(client: TurnClient) -> None:
    """The worker that was asked died; the next one is asked again, by its own heartbeat."""
    place = await submit(client)
    running = await claim(client.turns, place)
    await client.cancel(place.turn_id)
    await crash(client.turns, running)
    await claim(client.turns, place)
    assert await client.turns.stops_asked([place.turn_id]) == {place.turn_id: "cancel"}


async def test_a_finished_turn_stays_as_it_is(client: TurnClient) -> None:
    place = await answered(client, "Hello?", "Hi")
    before = await read(client, place)
    for _ in range(2):
        turn = await client.cancel(place.turn_id)
        assert (turn.state, turn.answer) == (TurnState.COMPLETED, "Hi")
    assert await read(client, place) == before


async def test_cancelling_twice_is_harmless(client: TurnClient) -> None:
    place = await submit(client)
    assert [(await client.cancel(place.turn_id)).state for _ in range(2)] == [TurnState.CANCELLED] * 2
    assert len(await read(client, place)) == 2


async def test_what_does_not_exist_cannot_be_cancelled(client: TurnClient) -> None:
    with pytest.raises(NotFound):
        await client.cancel("00" + "0" * 20)
