"""What happens when a worker dies in the middle of an answer, and when it was not dead at all."""

from __future__ import annotations

import pytest

from aiforge.core.events import Done, Message, Reset, Started, Token
from tests.support.turns import claim, expire, submit
from worker.contract.client import TurnClient
from worker.contract.schemas import TurnState

pytestmark = pytest.mark.anyio


async def test_a_crash(client: TurnClient) -> None:
    place = await submit(client, "What is Portugal's capital?", conversation_id="trip")

    # The first worker claims the turn. It gets a lease, which it renews, and a fence, which is its number.
    first = await claim(client.turns, place)
    assert first.claim.fence == 1
    await first.tokens("Lis", "bon")

    # It falls silent, so the lease runs out. A reaper takes the turn and it is ready again.
    await expire(client.turns, place.turn_id, int(place.turn_id[:2]))
    assert await client.turns.requeue(place, None) == ("queued", None)

    # The second worker begins from the start, under the next number. Readers are told to forget.
    second = await claim(client.turns, place)
    assert second.claim.fence == 2
    events = client.events(place.turn_id, after=4)
    assert [await anext(events) for _ in range(2)] == [(5, Reset(attempt=2)), (6, Started(attempt=2))]

    # The first was only slow. Whatever it says now bears the wrong number and changes nothing.
    assert not await first.tokens("!")
    assert not (await first.answer("Lisbon!")).accepted

    # So the answer lands once.
    await second.tokens("Lisbon.")
    assert (await second.answer("Lisbon.")).accepted
    assert [message.content for message in await client.messages("trip")] == [
        "What is Portugal's capital?",
        "Lisbon.",
    ]
    assert [event async for _, event in events] == [Token("Lisbon."), Message("Lisbon."), Done()]
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.attempts) == (TurnState.COMPLETED, 2)
