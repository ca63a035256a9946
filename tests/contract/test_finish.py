"""Committing: once, whole, and only by the attempt that holds the turn."""

from __future__ import annotations

import msgspec
import pytest

from aiforge.core.events import Done, Event, Message, Token
from tests.support.turns import COST, Connect, Running, answered, claim, crash, expire, read, state, submit
from worker.contract.claims import Finished
from worker.contract.client import TurnClient
from worker.contract.records import TurnOutcome
from worker.contract.schemas import StoredMessage, TurnState

pytestmark = pytest.mark.anyio


async def test_a_commit_is_seen_everywhere_at_once(client: TurnClient) -> None:
    place = await submit(client, "Hello?", conversation_id="c")
    running = await claim(client.turns, place)
    await running.tokens("H", "i")
    assert await client.messages("c") == []
    assert await running.answer("Hi") == Finished(accepted=True, following=None)
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.answer, turn.model) == (TurnState.COMPLETED, "Hi", "m")
    assert turn.finished_at is not None
    assert turn.finished_at >= turn.created_at
    assert await client.messages("c") == [
        StoredMessage(role="user", content="Hello?", turn_id=place.turn_id),
        StoredMessage(role="assistant", content="Hi", turn_id=place.turn_id),
    ]
    events = await read(client, place)
    assert [event for _, event in events[2:]] == [Token("H"), Token("i"), Message("Hi"), Done()]
    stats = await client.stats()
    assert (stats.ready, stats.running) == (0, 0)


async def test_a_repeated_commit_changes_nothing(client: TurnClient) -> None:
    place = await submit(client, conversation_id="c")
    running = await claim(client.turns, place)
    for _ in range(3):
        assert (await running.answer("Hi")).accepted
    assert (await client.conversation("c")).messages == 2
    assert len(await read(client, place)) == 4


async def test_a_repeated_commit_hands_out_the_next_turn_again(client: TurnClient) -> None:
    """The first reply may be lost, and then nobody was told of that turn."""
    place, following = [await submit(client, conversation_id="c") for _ in range(2)]
    running = await claim(client.turns, place)
    for _ in range(3):
        assert await running.answer("Hi") == Finished(accepted=True, following=following.turn_id)
    assert (await (await claim(client.turns, following)).answer("Hi")).following is None
    assert await running.answer("Hi") == Finished(accepted=True, following=None)


async def test_a_failed_turn_leaves_no_memory(client: TurnClient) -> None:
    place = await submit(client, conversation_id="c")
    following = await submit(client, conversation_id="c")
    failed = await (await claim(client.turns, place)).fail("provider_error")
    assert failed == Finished(accepted=True, following=following.turn_id)
    turn = await client.turn(place.turn_id)
    assert turn.state is TurnState.FAILED
    assert turn.error is not None
    assert turn.error.code == "provider_error"
    assert await client.messages("c") == []


async def test_after_its_lease_ran_out_an_attempt_is_refused(client: TurnClient) -> None:
    place = await submit(client, conversation_id="c")
    late = await claim(client.turns, place)
    assert await crash(client.turns, late) == "queued"
    assert not await late.tokens("too late")
    assert not (await late.answer("too late")).accepted
    assert await state(client, place) is TurnState.QUEUED
    assert await late.hand_back() == "refused"


async def test_after_another_claim_an_attempt_is_refused(client: TurnClient) -> None:
    place = await submit(client, conversation_id="c")
    late = await claim(client.turns, place)
    await crash(client.turns, late)
    current = await claim(client.turns, place)
    assert not await late.tokens("too late")
    assert not (await late.answer("too late")).accepted
    assert not (await late.fail()).accepted
    assert await late.hand_back() == "refused"
    await current.tokens("in time")
    assert (await current.answer("in time")).accepted
    assert [message.content for message in await client.messages("c")] == ["Hello?", "in time"]
    assert Token("too late") not in [event for _, event in await read(client, place)]


async def test_after_the_answer_a_late_attempt_changes_nothing(client: TurnClient) -> None:
    place = await submit(client, conversation_id="c")
    late = await claim(client.turns, place)
    await crash(client.turns, late)
    await (await claim(client.turns, place)).answer("right")
    before, events = await client.turn(place.turn_id), await read(client, place)
    assert not (await late.answer("wrong")).accepted
    assert not await late.tokens("wrong")
    after = await client.turn(place.turn_id)
    assert (before.cost, after.cost) == (None, 2 * COST), "what it took is known now"
    unpaid = {"usage": None, "cost": None, "estimated_cost": None}
    assert msgspec.structs.replace(after, **unpaid) == msgspec.structs.replace(before, **unpaid)
    assert await read(client, place) == events


async def test_a_lease_that_ran_out_still_counts_while_nobody_took_the_turn(client: TurnClient) -> None:
    place = await submit(client)
    running = await claim(client.turns, place)
    await expire(client.turns, place.turn_id, int(place.turn_id[:2]))
    assert (await running.answer("Hi")).accepted


async def test_events_come_once_when_their_reply_was_lost(client: TurnClient) -> None:
    place = await submit(client)
    running = await claim(client.turns, place)
    assert await running.tokens("a", "b")
    assert await running.say(Token("a"), Token("b"), Token("c"), position=0)
    assert await running.say(Token("b"), Token("c"), position=1)
    await finish_with(running, [Token("c"), Token("d"), Message("abcd"), Done()], position=2)
    events = [event for _, event in await read(client, place)]
    assert "".join(event.text for event in events if isinstance(event, Token)) == "abcd"
    assert events[-2:] == [Message("abcd"), Done()]


async def test_events_cannot_be_left_out(client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client))
    with pytest.raises(Exception, match="events are missing before position 3"):
        await running.say(Token("x"), position=3)


async def test_many_events_in_one_call(client: TurnClient) -> None:
    """More than Lua's `unpack` takes at once."""
    place = await submit(client)
    running = await claim(client.turns, place)
    await running.tokens(*map(str, range(9_000)))
    await running.answer("many")
    events = await read(client, place)
    assert [sequence for sequence, _ in events] == list(range(1, 9_005))
    assert [event.text for _, event in events if isinstance(event, Token)] == list(map(str, range(9_000)))


async def test_the_log_keeps_the_newest_events(connect: Connect) -> None:
    client = await connect(stream_keep=10)
    place = await submit(client)
    running = await claim(client.turns, place)
    for number in range(30):
        await running.tokens(str(number))
    await running.answer("done")
    assert await client.connection.command("LLEN", client.turns.keys.log(place.turn_id)) == 10


async def test_messages_keep_their_text(client: TurnClient) -> None:
    text = '日本😀\u0085\u2028\u2029é\x00\n"\\'
    place = await answered(client, text, text, conversation_id="c")
    assert [message.content for message in await client.messages("c")] == [text, text]
    assert (await client.turn(place.turn_id)).answer == text


async def test_messages_are_paged(client: TurnClient) -> None:
    for number in range(3):
        await answered(client, f"q{number}", f"a{number}", conversation_id="c")
    page = await client.messages("c", after=1, limit=3)
    assert [message.content for message in page] == ["a0", "q1", "a1"]
    assert await client.messages("c", after=6) == []


async def finish_with(running: Running, events: list[Event], *, position: int) -> None:
    done = await running.finish(
        TurnState.COMPLETED, TurnOutcome(answer="abcd"), events=events, position=position
    )
    assert done.accepted
