"""What becomes of a turn that meets a busy conversation."""

from __future__ import annotations

import pytest

from aiforge.core.events import Cancelled, Done, Message, Queued, Started
from tests.support.servers import RedisServer, client_of
from tests.support.turns import claim, read, state, submit
from worker.contract.client import TurnClient
from worker.contract.errors import Conflict
from worker.contract.records import TurnOutcome
from worker.contract.schemas import ConversationSettings, OnBusy, TurnFailure, TurnRequest, TurnState

pytestmark = pytest.mark.anyio
STOPPED = TurnOutcome(error=TurnFailure("cancelled", "the turn was cancelled"))


async def post(client: TurnClient, on_busy: OnBusy | None = None, *, conversation: str = "c") -> str:
    turn = await client.submit(TurnRequest(message="?", on_busy=on_busy), conversation_id=conversation)
    return turn.turn_id


async def test_reject_names_the_turn_that_is_busy(client: TurnClient) -> None:
    active = await submit(client, conversation_id="c")
    with pytest.raises(Conflict, match=active.turn_id) as refused:
        await post(client, "reject")
    assert refused.value.code == "conversation_busy"
    assert await client.line("c") == type(await client.line("c"))(active=active.turn_id, waiting=[])
    await (await claim(client.turns, active)).answer("1")
    assert (await client.turn(await post(client, "reject"))).state is TurnState.QUEUED


@pytest.mark.parametrize("how", ["interrupt", "rollback"])
async def test_a_running_turn_is_asked_and_the_new_one_goes_next(how: OnBusy, client: TurnClient) -> None:
    active = await submit(client, conversation_id="c")
    waiting = await submit(client, conversation_id="c")
    running = await claim(client.turns, active)
    new = await post(client, how)
    assert (await client.line("c")).waiting == [new, waiting.turn_id]
    assert await client.turns.stops_asked([active.turn_id]) == {active.turn_id: how}
    ended = await running.finish(TurnState.CANCELLED, STOPPED, events=[Cancelled()])
    assert (ended.accepted, ended.following) == (True, new)
    assert (await client.line("c")).active == new


async def test_what_is_to_be_rolled_back_cannot_complete(client: TurnClient) -> None:
    active = await submit(client, conversation_id="c")
    running = await claim(client.turns, active)
    await running.tokens("too late")
    new = await post(client, "rollback")
    refused = await running.answer("too late")
    assert (refused.accepted, refused.rolled_back) == (False, True)
    assert await client.messages("c") == []
    ended = await running.finish(TurnState.CANCELLED, STOPPED, events=[Cancelled()])
    assert ended.following == new
    assert [event for _, event in await read(client, active)][-1] == Cancelled()


async def test_an_interrupted_turn_may_still_complete_first(client: TurnClient) -> None:
    active = await submit(client, conversation_id="c")
    running = await claim(client.turns, active)
    new = await post(client, "interrupt")
    ended = await running.answer("done")
    assert (ended.accepted, ended.following) == (True, new)


@pytest.mark.parametrize("how", ["interrupt", "rollback"])
async def test_a_turn_that_nobody_runs_yet_ends_at_once(how: OnBusy, client: TurnClient) -> None:
    active = await submit(client, conversation_id="c")
    new = await post(client, how)
    assert await state(client, active) is TurnState.CANCELLED
    assert [event for _, event in await read(client, active)] == [Queued(), Cancelled()]
    assert (await client.line("c")).active == new
    running = await claim(client.turns, type(active)(new, "default", "c"))
    await running.answer("2")
    assert [event for _, event in await read(client, running.claim.place)] == [
        Queued(), Started(1), Message("2"), Done(),
    ]  # fmt: skip


async def test_the_conversation_says_what_holds_when_the_turn_does_not(client: TurnClient) -> None:
    await client.create_conversation(ConversationSettings(on_busy="reject"), conversation_id="c")
    await post(client)
    with pytest.raises(Conflict):
        await post(client)
    await post(client, "enqueue")
    assert len((await client.line("c")).waiting) == 1


async def test_waiting_turns_change_places_only_as_they_were_seen(client: TurnClient) -> None:
    await post(client)
    one, two, three = [await post(client) for _ in range(3)]
    line = await client.reorder("c", [one, two, three], [three, one, two])
    assert line.waiting == [three, one, two]
    with pytest.raises(Conflict) as changed:
        await client.reorder("c", [one, two, three], [two, one, three])
    assert changed.value.code == "line_changed"
    assert (await client.line("c")).waiting == [three, one, two]


async def test_a_cancellation_can_insist_on_a_state(client: TurnClient) -> None:
    first = await submit(client, conversation_id="c")
    waiting = await post(client)
    await claim(client.turns, first)
    with pytest.raises(Conflict) as changed:
        await client.cancel(first.turn_id, expected=TurnState.QUEUED)
    assert changed.value.code == "turn_changed"
    assert await client.turns.stops_asked([first.turn_id]) == {}
    assert (await client.cancel(waiting, expected=TurnState.QUEUED)).state is TurnState.CANCELLED


async def test_readers_of_what_is_interrupted_hear_of_it_at_once(
    client: TurnClient, server: RedisServer
) -> None:
    """On its own channel, and not when they next look into its log."""
    place = await submit(client, conversation_id="c")
    with client_of(server.port, None) as other, other.pubsub() as heard:
        heard.subscribe(client.turns.keys.events(place.turn_id))
        assert heard.get_message(timeout=10)["type"] == "subscribe"
        await post(client, "interrupt")
        assert b'"cancelled"' in heard.get_message(timeout=10)["data"]
