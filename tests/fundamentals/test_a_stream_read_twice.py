"""One stream, many readers: each gets every event once and in order, whenever it joins."""

from __future__ import annotations

import pytest

from aiforge.core.events import Done, Event, Message, Queued, Started, Token
from tests.support.turns import claim, read, submit
from worker.contract.client import TurnClient

pytestmark = pytest.mark.anyio


async def test_a_stream_read_twice(client: TurnClient) -> None:
    place = await submit(client)
    running = await claim(client.turns, place)
    await running.tokens("Once ", "upon ")

    # The first reader joins while the answer is being written: it gets the past, then the present.
    first = client.events(place.turn_id)
    assert [await anext(first) for _ in range(4)] == [
        (1, Queued()),
        (2, Started(attempt=1)),
        (3, Token("Once ")),
        (4, Token("upon ")),
    ]
    await running.tokens("a ")
    assert await anext(first) == (5, Token("a "))

    # Its connection breaks. The number of the last event is all it needs to go on elsewhere.
    resumed = client.events(place.turn_id, after=5)
    await running.tokens("time.")
    assert await anext(resumed) == (6, Token("time."))
    await running.answer("Once upon a time.")
    rest: list[tuple[int, Event]] = [(7, Message("Once upon a time.")), (8, Done())]
    assert [entry async for entry in resumed] == rest

    # One who comes when all is over reads the same story; one who had it all is only told that it ended.
    whole = await read(client, place)
    assert [number for number, _ in whole] == list(range(1, 9))
    assert whole[6:] == rest
    assert await read(client, place, after=8) == [(8, Done())]
