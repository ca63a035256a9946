"""A turn that waits for a human, and one that waits for its time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from aiforge.core.events import (
    Cancelled,
    Error,
    Event,
    Expired,
    Queued,
    RequiresAction,
    Started,
    Token,
    encode,
)
from tests.support.servers import RedisServer
from tests.support.turns import Connect, Running, claim, crash, paid, read, state, submit
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.errors import Conflict, NotFound
from worker.contract.ids import SHARDS
from worker.contract.places import Place
from worker.contract.schemas import Paused, Question, TurnRequest, TurnState

pytestmark = pytest.mark.anyio
ASKED = RequiresAction("q1", "approval", "May I?")
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": None, "tool_calls": []},
]
QUESTION = Question(
    question_id="q1", kind="approval", text="May I?", call_id="call_1", tool="t", input={"a": 1}
)


async def pause(running: Running, events: list[Event] | None = None) -> str:
    return await running.store.pause(
        running.claim,
        Paused(messages=MESSAGES, question=QUESTION, calls=[paid(running.call_id)]),
        events=[encode(event) for event in events or [ASKED]],
        position=running.said,
        calls=[paid(running.call_id)],
    )


async def tick(client: TurnClient) -> list[str]:
    """What a reaper would let go on now."""
    found = await client.turns.reap(range(SHARDS), "reaper")
    return [turn_id for shard in found for turn_id in shard.timed]


async def until_due(client: TurnClient, place: Place) -> None:
    async def due() -> bool:
        return await tick(client) == [place.turn_id]

    await eventually(due)


async def test_a_paused_turn_frees_its_slot_and_holds_its_place(
    client: TurnClient, server: RedisServer
) -> None:
    place = await submit(client, conversation_id="c")
    waiting = await submit(client, conversation_id="c")
    running = await claim(client.turns, place)
    await running.tokens("Let me ask. ")
    assert await pause(running) == "ok"
    assert await pause(running) == "ok"
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.question, turn.attempts) == (TurnState.REQUIRES_ACTION, QUESTION, 0)
    assert server.ask("ZCARD", client.turns.keys.leases(int(place.turn_id[:2]))) == 0
    assert (await client.line("c")).waiting == [waiting.turn_id]
    assert not await running.tokens("late")

    resumed = await client.resume(place.turn_id, "q1", "approved")
    assert (resumed.state, resumed.question) == (TurnState.QUEUED, None)
    again = await claim(client.turns, place)
    assert again.claim.answer == "approved"
    assert again.claim.paused is not None
    assert again.claim.paused.messages == MESSAGES
    assert (await again.answer("Done.")).following == waiting.turn_id
    events = [event for _, event in await read(client, place)]
    assert events[:5] == [Queued(), Started(1), Token("Let me ask. "), ASKED, Started(1)]


async def test_an_answer_counts_once(client: TurnClient) -> None:
    place = await submit(client)
    with pytest.raises(Conflict) as early:
        await client.resume(place.turn_id, "q1", "yes")
    assert early.value.code == "not_waiting"
    await pause(await claim(client.turns, place))
    with pytest.raises(NotFound):
        await client.resume(place.turn_id, "q2", "yes")
    await client.resume(place.turn_id, "q1", "yes")
    assert (await client.resume(place.turn_id, "q1", "yes")).state is TurnState.QUEUED
    with pytest.raises(Conflict) as other:
        await client.resume(place.turn_id, "q1", "no")
    assert other.value.code == "already_answered"
    await (await claim(client.turns, place)).answer("ok")
    assert (await client.resume(place.turn_id, "q1", "yes")).state is TurnState.COMPLETED


async def test_a_pause_leaves_no_call_open_that_was_never_made(client: TurnClient) -> None:
    """As where an answer leads to the next question, and no provider was asked between them."""
    place = await submit(client)
    running = await claim(client.turns, place)
    paused = Paused(messages=MESSAGES, question=QUESTION)
    await client.turns.pause(running.claim, paused, events=[encode(ASKED)], position=0, calls=[])
    assert await client.turns.calls(place.turn_id) == []


async def test_a_crash_after_the_answer_asks_nobody_again(client: TurnClient) -> None:
    place = await submit(client)
    await pause(await claim(client.turns, place))
    await client.resume(place.turn_id, "q1", "yes")
    assert await crash(client.turns, await claim(client.turns, place)) == "queued"
    again = await claim(client.turns, place)
    assert (again.claim.answer, again.claim.attempt) == ("yes", 2)


async def test_what_a_turn_took_is_shown_while_it_waits_and_when_it_ends_there(client: TurnClient) -> None:
    place = await submit(client)
    await pause(await claim(client.turns, place))
    call = paid("any")
    waiting = await client.turn(place.turn_id)
    assert (waiting.usage, waiting.cost, waiting.model) == (call.usage, call.cost, call.model)
    ended = await client.cancel(place.turn_id)
    assert (ended.state, ended.usage, ended.cost) == (TurnState.CANCELLED, call.usage, call.cost)
    assert ended.error is not None
    assert ended.error.message == "the turn was cancelled while it waited"


async def test_a_paused_turn_can_be_cancelled(client: TurnClient) -> None:
    place = await submit(client, conversation_id="c")
    following = await submit(client, conversation_id="c")
    await pause(await claim(client.turns, place))
    assert (await client.cancel(place.turn_id)).state is TurnState.CANCELLED
    assert (await client.line("c")).active == following.turn_id
    assert await tick(client) == []


async def test_who_was_asked_to_stop_does_not_pause(client: TurnClient) -> None:
    place = await submit(client)
    running = await claim(client.turns, place)
    await client.cancel(place.turn_id)
    assert await pause(running) == "cancel"
    assert await state(client, place) is TurnState.RUNNING


async def test_nobody_answers_in_time(connect: Connect) -> None:
    client = await connect(action_timeout_seconds=0.01)
    place = await submit(client, conversation_id="c")
    following = await submit(client, conversation_id="c")
    await pause(await claim(client.turns, place))
    await until_due(client, place)
    assert await client.turns.due(place) == following.turn_id
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.error and turn.error.code) == (TurnState.EXPIRED, "expired")
    assert (turn.usage, turn.cost) == (paid("any").usage, paid("any").cost)
    assert [event for _, event in await read(client, place)][-2:] == [
        Error("expired", "nobody answered in time"), Expired(),
    ]  # fmt: skip
    assert await client.turns.due(place) is None


async def schedule(client: TurnClient, after: float) -> Place:
    request = TurnRequest(message="later", run_after=time.time() + after)
    turn = await client.submit(request, conversation_id="c")
    assert turn.state is TurnState.SCHEDULED
    return Place(turn.turn_id, "default", "c")


async def test_a_scheduled_turn_joins_the_line_when_it_is_due(client: TurnClient) -> None:
    late, soon = await schedule(client, 3_600), await schedule(client, 0.01)
    active = await submit(client, conversation_id="c")
    assert (await client.line("c")).waiting == []
    await until_due(client, soon)
    assert await client.turns.due(late) is None
    assert await client.turns.due(soon) is None
    assert (await client.line("c")).waiting == [soon.turn_id]
    assert (await (await claim(client.turns, active)).answer("1")).following == soon.turn_id
    assert await state(client, late) is TurnState.SCHEDULED
    assert (await client.cancel(late.turn_id)).state is TurnState.CANCELLED
    assert [event for _, event in await read(client, late)] == [Queued(), Cancelled()]


async def test_a_scheduled_turn_of_an_idle_conversation_is_ready_at_once(client: TurnClient) -> None:
    place = await schedule(client, 0.01)
    await until_due(client, place)
    assert await client.turns.due(place) == place.turn_id
    await (await claim(client.turns, place)).answer("now")


async def test_a_late_attempt_keeps_nothing(client: TurnClient) -> None:
    place, kept = await submit(client), Paused(messages=MESSAGES)
    late = await claim(client.turns, place)
    await crash(client.turns, late)
    assert not await client.turns.keep(late.claim, kept)
    second = await claim(client.turns, place)
    assert not await client.turns.keep(late.claim, kept)
    await second.hand_back()
    assert (await claim(client.turns, place)).claim.paused is None
