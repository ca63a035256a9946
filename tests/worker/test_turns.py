"""The turn runner against a real store and a real provider: every way in which an attempt can end."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest

from aiforge.core.events import Cancelled, Done, Error, Failed, Message, Preamble, Token, ToolCall, ToolResult
from aiforge.testing import CALL_ID_HEADER, Cut, FakeProvider, Gate, Reply, check_messages, failure
from aiforge.testing import ToolCall as Asked
from tests.support.runners import LocalWorker
from tests.support.servers import RedisServer
from tests.support.turns import Connect, claim, expire, read, state, submit
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.places import Place, new_place
from worker.contract.schemas import Lane, TurnRequest, TurnState
from worker.contract.settings import ContractSettings

pytestmark = pytest.mark.anyio

HALF = Reply(chunks=["Half ", "an ", Gate("rest"), "answer."])


async def outcomes(client: TurnClient, place: Place) -> list[str]:
    return sorted(call.outcome for call in await client.turns.calls(place.turn_id))


async def said(client: TurnClient, place: Place, count: int) -> None:
    """Wait until readers have seen so many tokens."""
    seen = 0
    async for _, event in client.events(place.turn_id):
        seen += isinstance(event, Token)
        if seen == count:
            return


async def test_an_answer(client: TurnClient, provider: FakeProvider) -> None:
    provider.push("Lisbon is the capital.")
    place = await submit(client, "What is Portugal's capital?", conversation_id="c")
    async with LocalWorker(client, provider) as worker:
        await worker.turns.run(place.turn_id)
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.answer, turn.model) == (
        TurnState.COMPLETED,
        "Lisbon is the capital.",
        "gpt-4o-mini",
    )
    events = [event for _, event in await read(client, place)]
    assert "".join(event.text for event in events if isinstance(event, Token)) == turn.answer
    assert events[-2:] == [Message("Lisbon is the capital."), Done()]
    (call,) = await client.turns.calls(place.turn_id)
    (seen,) = provider.calls
    assert seen.headers[CALL_ID_HEADER] == call.call_id
    assert (call.outcome, call.usage, call.cost) == ("ok", seen.reported, turn.cost)
    assert (turn.usage, turn.cost) == (seen.reported, call.cost)
    assert [message.content for message in await client.messages("c")] == [
        "What is Portugal's capital?",
        "Lisbon is the capital.",
    ]


async def test_the_conversations_waiting_turns_follow_without_wake_ups(
    client: TurnClient, provider: FakeProvider
) -> None:
    places = [await submit(client, f"question {number}", conversation_id="c") for number in range(4)]
    for number in range(4):
        provider.push(f"answer {number}")
    async with LocalWorker(client, provider) as worker:
        await worker.turns.run(places[0].turn_id)
    assert [await state(client, place) for place in places] == [TurnState.COMPLETED] * 4
    assert [len(call.messages) for call in provider.calls] == [2, 4, 6, 8]
    assert [message.content for message in await client.messages("c")][1::2] == [
        f"answer {number}" for number in range(4)
    ]


async def test_tools(client: TurnClient, provider: FakeProvider) -> None:
    provider.push(
        Reply(text="Let me see.", tool_calls=[Asked("calculator", {"expression": "2 + 2"})]),
        "It is 4.",
        "Gladly.",
    )
    turn = await client.submit(TurnRequest(message="2 + 2?", tools=["calculator"]), conversation_id="c")
    place = Place(turn.turn_id, "default", "c")
    async with LocalWorker(client, provider) as worker:
        await worker.turns.run(place.turn_id)
        events = [event for _, event in await read(client, place)]
        assert [type(event) for event in events if isinstance(event, (Preamble, ToolCall, ToolResult))] == [
            Preamble,
            ToolCall,
            ToolResult,
        ]
        assert (await client.turn(place.turn_id)).answer == "It is 4."
        assert await outcomes(client, place) == ["ok", "ok"]
        assert [message.role for message in await client.messages("c")] == [
            "user", "assistant", "tool", "assistant",
        ]  # fmt: skip
        await worker.turns.run((await submit(client, "Thanks", conversation_id="c")).turn_id)
    check_messages(provider.calls[-1].messages)
    calls = await client.turns.calls(place.turn_id)
    cost = (await client.turn(place.turn_id)).cost
    assert cost == sum((call.cost or 0 for call in calls), Decimal(0))


async def test_a_failure_in_the_middle(client: TurnClient, provider: FakeProvider) -> None:
    """Two chunks, then the end of the connection: two chunks, why, and one terminal event."""
    provider.push(Reply(chunks=["Half ", "an", Cut()]))
    place = await submit(client, conversation_id="c")
    async with LocalWorker(client, provider) as worker:
        await worker.turns.run(place.turn_id)
    turn = await client.turn(place.turn_id)
    assert turn.state is TurnState.FAILED
    assert turn.error is not None
    assert turn.error.code == "provider_stream_cut"
    events = [event for _, event in await read(client, place)]
    assert [event.text for event in events if isinstance(event, Token)] == ["Half ", "an"]
    assert isinstance(events[-2], Error)
    assert isinstance(events[-1], Failed)
    assert await client.messages("c") == []
    assert await outcomes(client, place) == ["error"]


async def test_a_retry_is_a_call_of_its_own(client: TurnClient, provider: FakeProvider) -> None:
    provider.push(failure(500), "Fine.")
    place = await submit(client)
    async with LocalWorker(client, provider) as worker:
        await worker.turns.run(place.turn_id)
    assert (await client.turn(place.turn_id)).answer == "Fine."
    assert await outcomes(client, place) == ["error", "ok"]
    assert len({call.call_id for call in provider.calls}) == 2


async def test_a_worker_that_cannot_build_the_turn(client: TurnClient, provider: FakeProvider) -> None:
    """Another version accepted a tool that this one does not have: it fails in words, without a call."""
    place = new_place("default", "c")
    await client.turns.submit(place, TurnRequest(message="Hello?", tools=["gone"]), digest="d")
    async with LocalWorker(client, provider) as worker:
        await worker.turns.run(place.turn_id)
    turn = await client.turn(place.turn_id)
    assert turn.error is not None
    assert (turn.error.code, turn.cost) == ("invalid_config", Decimal(0))
    assert len(provider.calls) == 0
    assert await outcomes(client, place) == [], "a call that was never made has no row"


async def test_cancelling_keeps_what_was_seen(client: TurnClient, provider: FakeProvider) -> None:
    provider.push(HALF)
    place = await submit(client, conversation_id="c")
    following = await submit(client, "And?", conversation_id="c")
    async with LocalWorker(client, provider) as worker:
        running = worker.start(place.turn_id)
        await said(client, place, 2)
        worker.leases.stop(place.turn_id, "cancelled")
        await running
        await provider.wait_until_async(lambda: provider.calls[0].end == "closed")
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.answer) == (TurnState.CANCELLED, "Half an ")
    events = [event for _, event in await read(client, place)]
    assert events[-2:] == [Message("Half an ", stopped=True), Cancelled()]
    kept = await client.messages("c")
    assert [(message.content, message.stopped) for message in kept[:2]] == [
        ("Hello?", False),
        ("Half an ", True),
    ]
    assert await outcomes(client, place) == ["aborted"]
    assert turn.cost is not None
    assert turn.cost > 0
    assert await state(client, following) is TurnState.COMPLETED


async def test_cancelling_before_the_first_token_leaves_nothing(
    client: TurnClient, provider: FakeProvider
) -> None:
    provider.push(Reply(chunks=[Gate("never"), "x"]))
    place = await submit(client, conversation_id="c")
    async with LocalWorker(client, provider) as worker:
        running = worker.start(place.turn_id)
        await provider.wait_until_async(lambda: provider.calls.running == 1)
        worker.leases.stop(place.turn_id, "cancelled")
        await running
    assert await state(client, place) is TurnState.CANCELLED
    assert await client.messages("c") == []
    assert [event for _, event in await read(client, place)][-1] == Cancelled()


async def test_a_hand_back_begins_again_elsewhere(client: TurnClient, provider: FakeProvider) -> None:
    provider.push(HALF, "The whole answer.")
    place = await submit(client)
    async with LocalWorker(client, provider) as worker:
        running = worker.start(place.turn_id)
        await said(client, place, 2)
        worker.leases.stop_all("handed_back")
        await running
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.attempts) == (TurnState.QUEUED, 0)
    assert await outcomes(client, place) == ["aborted"]
    async with LocalWorker(client, provider) as other:
        await other.turns.run(place.turn_id)
    turn = await client.turn(place.turn_id)
    assert (turn.answer, turn.attempts) == ("The whole answer.", 1)
    assert await outcomes(client, place) == ["aborted", "ok"]


async def test_a_superseded_attempt_stops_and_leaves_only_its_bill(
    client: TurnClient, provider: FakeProvider
) -> None:
    provider.push(HALF, "The other's answer.")
    place = await submit(client, conversation_id="c")
    async with LocalWorker(client, provider) as slow, LocalWorker(client, provider) as other:
        running = slow.start(place.turn_id)
        await said(client, place, 2)
        await expire(client.turns, place.turn_id, int(place.turn_id[:2]))
        await client.turns.requeue(place, None)
        await other.turns.run(place.turn_id)
        assert await outcomes(client, place) == ["lost", "ok"]
        provider.open("rest")
        await running
    assert await outcomes(client, place) in (["aborted", "ok"], ["ok", "ok"])
    assert [message.content for message in await client.messages("c")] == ["Hello?", "The other's answer."]


async def test_what_cannot_be_run_is_left_alone(client: TurnClient, provider: FakeProvider) -> None:
    running = await claim(client.turns, await submit(client))
    async with LocalWorker(client, provider) as worker:
        await worker.turns.run("00" + "0" * 20)
        await worker.turns.run(running.claim.place.turn_id)
    assert len(provider.calls) == 0
    assert (await running.answer("mine")).accepted


async def test_a_draining_worker_takes_nothing_and_passes_it_on(
    client: TurnClient, provider: FakeProvider
) -> None:
    place = await submit(client)
    await eventually(lambda: depth(client, 1))
    async with LocalWorker(client, provider) as worker:
        worker.draining = True
        await worker.turns.run(place.turn_id)
    assert await state(client, place) is TurnState.QUEUED
    assert await depth(client, 2)


async def depth(client: TurnClient, expected: int) -> bool:
    return (await client.stats()).depth[Lane.CHAT] == expected


@pytest.mark.parametrize("piece", [1, 2, 3, 7])
async def test_any_text_split_anywhere(client: TurnClient, provider: FakeProvider, piece: int) -> None:
    text = "日本😀\u0085\u2028é"
    provider.push(Reply(chunks=[text, text], piece=piece))
    place = await submit(client, text, conversation_id="c")
    async with LocalWorker(client, provider) as worker:
        await worker.turns.run(place.turn_id)
    assert (await client.turn(place.turn_id)).answer == text + text
    assert [message.content for message in await client.messages("c")] == [text, text + text]


async def test_an_answer_outlives_an_outage(provider: FakeProvider, namespace: str) -> None:
    """Redis is killed while the answer streams and comes back: the answer is committed all the same."""
    provider.push(HALF)
    with RedisServer(options={"appendfsync": "always"}) as own:
        settings = ContractSettings(redis_url=own.url, namespace=namespace, lease_seconds=60)
        async with await TurnClient.connect(settings) as client, LocalWorker(client, provider) as worker:
            place = await submit(client, conversation_id="c")
            running = worker.start(place.turn_id)
            await said(client, place, 2)
            own.kill()
            provider.open("rest")
            await provider.wait_until_async(lambda: provider.calls[0].end == "answered")
            await asyncio.to_thread(own.start)
            await running
            assert (await client.turn(place.turn_id)).answer == "Half an answer."
            assert (await client.conversation("c")).messages == 2


async def test_unpriced_is_not_free(connect: Connect, provider: FakeProvider) -> None:
    client = await connect()
    turn = await client.submit(TurnRequest(message="Hello?", model="nobody-knows-this-model"))
    async with LocalWorker(client, provider) as worker:
        await worker.turns.run(turn.turn_id)
    turn = await client.turn(turn.turn_id)
    assert (turn.state, turn.cost) == (TurnState.COMPLETED, None)
    assert (await client.stats()).totals["openai", "nobody-knows-this-model"]["unpriced"] == 1
