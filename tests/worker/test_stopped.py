"""What memory keeps of a turn that was stopped, and what the model is told of its tools in the next one."""

from __future__ import annotations

import msgspec
import pytest

from aiforge.core.events import Cancelled, Message
from aiforge.testing import FakeProvider, Gate, Reply, check_messages
from aiforge.testing import ToolCall as Asked
from tests.support.runners import LocalWorker
from tests.support.turns import read, state, submit
from worker.contract.client import TurnClient
from worker.contract.places import Place
from worker.contract.schemas import Paused, TurnRequest, TurnState
from worker.running.journal import left_of

pytestmark = pytest.mark.anyio
HIDDEN = ("turn_id", "stopped")
SUM = Asked("calculator", {"expression": "2 + 2"})


async def ask(client: TurnClient) -> Place:
    turn = await client.submit(TurnRequest(message="2 + 2?", tools=["calculator"]), conversation_id="c")
    return Place(turn.turn_id, "default", "c")


async def told(client: TurnClient) -> list[tuple[str, object, bool]]:
    return [(message.role, message.content, message.stopped) for message in await client.messages("c")]


@pytest.mark.parametrize("partial", ["", "It "])
async def test_what_tools_have_done_stays_with_the_partial_answer(
    partial: str, client: TurnClient, provider: FakeProvider
) -> None:
    chunks: list[str | Gate] = [partial, Gate("never"), "is 4."] if partial else [Gate("never"), "It is 4."]
    provider.push(Reply(text="Let me see.", tool_calls=[SUM]), Reply(chunks=chunks), "Gladly.")
    place = await ask(client)
    async with LocalWorker(client, provider) as worker:
        running = worker.start(place.turn_id)
        await provider.wait_until_async(lambda: len(provider.calls) == 2)
        if partial:
            async for _, event in client.events(place.turn_id):
                if getattr(event, "text", None) == partial:
                    break
        worker.leases.stop(place.turn_id, "cancelled")
        await running
        rest: list[tuple[str, object, bool]] = [("assistant", partial, True)] if partial else []
        assert await told(client) == [
            ("user", "2 + 2?", False), ("assistant", "Let me see.", not partial), ("tool", "4", False), *rest,
        ]  # fmt: skip
        await worker.turns.run((await submit(client, "Thanks", conversation_id="c")).turn_id)
    check_messages(provider.calls[-1].messages)
    assert (await client.turn(place.turn_id)).answer == (partial or None)
    last = [event for _, event in await read(client, place)][-2:]
    assert last[-1] == Cancelled()
    assert (last[0] == Message(partial, stopped=True)) == bool(partial)


async def test_a_rolled_back_turn_leaves_nothing_of_its_tools(
    client: TurnClient, provider: FakeProvider
) -> None:
    provider.push(Reply(tool_calls=[SUM]), Reply(chunks=[Gate("never"), "It is 4."]))
    place = await ask(client)
    async with LocalWorker(client, provider) as worker:
        running = worker.start(place.turn_id)
        await provider.wait_until_async(lambda: len(provider.calls) == 2)
        worker.leases.stop(place.turn_id, "rolled_back")
        await running
    assert await state(client, place) is TurnState.CANCELLED
    assert await client.messages("c") == []


async def test_a_turn_that_is_interrupted_while_it_is_handed_back_keeps_what_was_seen(
    client: TurnClient, provider: FakeProvider
) -> None:
    provider.push(Reply(chunks=["Half ", Gate("rest"), "an answer."]))
    place = await submit(client, conversation_id="c")
    async with LocalWorker(client, provider) as worker:
        running = worker.start(place.turn_id)
        async for _, event in client.events(place.turn_id):
            if getattr(event, "text", None) == "Half ":
                break
        next_one = await client.submit(TurnRequest(message="No", on_busy="interrupt"), conversation_id="c")
        worker.draining = True
        worker.leases.stop_all("handed_back")
        await running
    assert await told(client) == [("user", "Hello?", False), ("assistant", "Half ", True)]
    assert await state(client, place) is TurnState.CANCELLED
    assert (await client.line("c")).active == next_one.turn_id


def test_a_call_without_a_result_may_have_been_made_or_not() -> None:
    calls = [{"id": name, "type": "function", "function": {"name": "t", "arguments": "{}"}} for name in "abc"]
    so_far = Paused(
        messages=[
            {"role": "user", "content": "Go"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "b", "content": "done"},
        ],
        begun=["a", "b"],
    )
    left = left_of(so_far, "t1")
    sent = [msgspec.to_builtins(message) for message in left]
    check_messages([{name: message[name] for name in message if name not in HIDDEN} for message in sent])
    results = {message.tool_call_id: str(message.content) for message in left if message.role == "tool"}
    assert "may have completed" in results["a"]
    assert results["b"] == "done"
    assert "not executed" in results["c"]
    assert [message.stopped for message in left] == [False, True, False, False, False]
    assert [message.stopped for message in left_of(so_far, "t1", "Half")] == [False] * 5 + [True]
    assert left_of(Paused(messages=so_far.messages[:1]), "t1") == []
