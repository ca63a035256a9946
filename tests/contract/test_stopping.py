"""Stopping a turn: by several who want it differently, while it waits, while it is handed back."""

from __future__ import annotations

from typing import Literal

import pytest

from aiforge.core.events import Cancelled, RequiresAction, encode
from tests.support.turns import Running, claim, crash, state, submit
from worker.contract.claims import Finished
from worker.contract.client import TurnClient
from worker.contract.records import TurnOutcome
from worker.contract.schemas import (
    ConversationSettings,
    OnBusy,
    Paused,
    Question,
    StoredMessage,
    TurnFailure,
    TurnRequest,
    TurnState,
)

pytestmark = pytest.mark.anyio
STOPPED = TurnOutcome(error=TurnFailure("cancelled", "the turn was cancelled"))
LEFT = [
    StoredMessage(role="user", content="Ship A1"),
    StoredMessage(
        role="assistant",
        tool_calls=[{"id": "call_1", "type": "function", "function": {"name": "ship", "arguments": "{}"}}],
        stopped=True,
    ),
    StoredMessage(role="tool", tool_call_id="call_1", content="A1 is\non its way"),
]
PAUSED = Paused(
    messages=[{"role": "user", "content": "Ship A1"}, {"role": "assistant", "content": "May I?"}],
    question=Question(question_id="q1", kind="question", text="May I?", call_id="call_2"),
)
Way = Literal["cancel", "interrupt", "rollback"]


async def post(client: TurnClient, on_busy: OnBusy) -> str:
    turn = await client.submit(TurnRequest(message="?", on_busy=on_busy), conversation_id="c")
    return turn.turn_id


async def stop_with(client: TurnClient, running: Running, *messages: StoredMessage) -> Finished:
    return await running.finish(TurnState.CANCELLED, STOPPED, messages=messages, events=[Cancelled()])


async def end(client: TurnClient, running: Running, way: Way) -> None:
    if way == "cancel":
        await client.cancel(running.claim.place.turn_id)
    else:
        await post(client, way)
    assert await state(client, running.claim.place) is TurnState.CANCELLED


@pytest.mark.parametrize(
    ("ways", "counts"),
    [
        (["interrupt", "rollback"], "rollback"),
        (["rollback", "interrupt"], "rollback"),
        (["rollback", "interrupt", "rollback"], "rollback"),
        (["interrupt", "interrupt"], "interrupt"),
    ],
)
async def test_who_wants_a_turn_forgotten_is_not_overruled(
    ways: list[OnBusy], counts: str, client: TurnClient
) -> None:
    running = await claim(client.turns, await submit(client, conversation_id="c"))
    turn_id = running.claim.place.turn_id
    for way in ways:
        await post(client, way)
    await client.cancel(turn_id)
    assert await client.turns.stops_asked([turn_id]) == {turn_id: counts}


async def test_what_was_interrupted_and_then_rolled_back_leaves_no_partial_answer(client: TurnClient) -> None:
    """Its worker has heard only of the interruption so far."""
    running = await claim(client.turns, await submit(client, conversation_id="c"))
    await post(client, "interrupt")
    await post(client, "rollback")
    refused = await stop_with(client, running, StoredMessage(role="assistant", content="Half", stopped=True))
    assert (refused.accepted, refused.rolled_back) == (False, True)
    assert (await stop_with(client, running)).accepted
    assert await client.messages("c") == []


@pytest.mark.parametrize("way", ["cancel", "interrupt", "rollback"])
@pytest.mark.parametrize("lives", [None, 60])
async def test_what_a_paused_turn_has_done_stays_unless_it_is_rolled_back(
    way: Way, lives: int | None, client: TurnClient
) -> None:
    await client.create_conversation(ConversationSettings(ttl=lives), conversation_id="c")
    running = await claim(client.turns, await submit(client, conversation_id="c"))
    asked = [encode(RequiresAction("q1", "question", "May I?"))]
    assert await client.turns.pause(
        running.claim, PAUSED, events=asked, position=0, calls=[], left=LEFT
    ) == "ok"  # fmt: skip
    await end(client, running, way)
    told = await client.messages("c")
    assert told == ([] if way == "rollback" else LEFT)
    versions = await client.history.versions("c")
    assert [version.turn_id for version in versions] == [running.claim.place.turn_id] * bool(told)


@pytest.mark.parametrize("way", ["cancel", "rollback"])
async def test_so_does_what_one_has_done_that_waits_after_a_crash(way: Way, client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client, conversation_id="c"))
    assert await client.turns.keep(running.claim, PAUSED, LEFT)
    assert await crash(client.turns, running) == "queued"
    await end(client, running, way)
    assert await client.messages("c") == ([] if way == "rollback" else LEFT)


async def test_a_turn_that_goes_on_leaves_its_answer_alone(client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client, conversation_id="c"))
    await client.turns.keep(running.claim, PAUSED, LEFT)
    await running.answer("Done.")
    assert [message.content for message in await client.messages("c")] == ["Hello?", "Done."]


@pytest.mark.parametrize("way", ["cancel", "interrupt", "rollback"])
async def test_what_is_to_stop_is_not_handed_back(way: Way, client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client, conversation_id="c"))
    if way == "cancel":
        await client.cancel(running.claim.place.turn_id)
    else:
        await post(client, way)
    assert await running.hand_back() == way
    assert await state(client, running.claim.place) is TurnState.RUNNING
    assert (await stop_with(client, running)).accepted
