"""The life of a turn, from the question to the memory of it."""

from __future__ import annotations

import pytest

from aiforge.core.events import Done, Message, Queued, Started, Token, UsageReport
from aiforge.testing import FakeProvider
from tests.support.processes import Start
from worker.contract.client import TurnClient
from worker.contract.schemas import TurnRequest, TurnState

pytestmark = pytest.mark.anyio


async def test_life_of_a_turn(client: TurnClient, provider: FakeProvider, worker_process: Start) -> None:
    provider.push("Lisbon is the capital of Portugal.", "About 550,000 people live there.")

    # A caller stores a question. From now on it is in Redis, whether a worker lives or not.
    turn = await client.submit(TurnRequest(message="What is Portugal's capital?"), conversation_id="trip")
    assert turn.state is TurnState.QUEUED

    # A worker, whenever it comes, claims the turn and asks the provider.
    worker_process()

    # A reader follows the turn's log: numbered events, the tokens as they come, the answer after its commit.
    events = [event async for _, event in client.events(turn.turn_id)]
    assert events[0] == Queued()
    assert events[1] == Started(attempt=1)
    text = "".join(event.text for event in events if isinstance(event, Token))
    assert isinstance(events[-3], UsageReport)
    assert events[-2:] == [Message(text), Done()]

    # What was committed is what was streamed, with its price.
    turn = await client.turn(turn.turn_id)
    assert (turn.state, turn.answer, turn.attempts) == (TurnState.COMPLETED, text, 1)
    assert turn.cost is not None
    assert turn.cost > 0

    # The conversation remembers, so the next question may say "there".
    turn = await client.submit(TurnRequest(message="How many people live there?"), conversation_id="trip")
    assert (await client.wait(turn.turn_id, 20)).answer == "About 550,000 people live there."
    asked = provider.calls[-1].body["messages"]
    assert [message["content"] for message in asked if message["role"] != "system"] == [
        "What is Portugal's capital?",
        "Lisbon is the capital of Portugal.",
        "How many people live there?",
    ]
    assert (await client.conversation("trip")).messages == 4
