"""What a turn is shown of the conversation, in each of the three ways in which one remembers."""

from __future__ import annotations

from decimal import Decimal

import pytest

from aiforge.testing import FakeProvider, RecordedCall, failure
from tests.support.runners import LocalWorker
from tests.support.turns import Connect, submit
from worker.contract.client import TurnClient
from worker.contract.schemas import ConversationChanges, ConversationSettings, MemoryMode, TurnState

pytestmark = pytest.mark.anyio


async def talk(client: TurnClient, worker: LocalWorker, *questions: str) -> None:
    for question in questions:
        place = await submit(client, question, conversation_id="c")
        await worker.turns.run(place.turn_id)
        assert (await client.turn(place.turn_id)).state is TurnState.COMPLETED


def shown(call: RecordedCall) -> list[str]:
    """What a request holds beside the system prompt."""
    return [str(message["content"]) for message in call.messages[1:]]


@pytest.mark.parametrize(
    ("memory", "last"),
    [("buffer", ["q1", "a1", "q2"]), ("none", ["q2"]), ("summary", ["q0", "a0", "q1", "a1", "q2"])],
)
async def test_the_three_modes_at_the_provider(
    client: TurnClient, provider: FakeProvider, memory: MemoryMode, last: list[str]
) -> None:
    settings = ConversationSettings(memory=memory, memory_k=2)
    await client.create_conversation(settings, conversation_id="c")
    provider.push("a0", "a1", "a2")
    async with LocalWorker(client, provider) as worker:
        await talk(client, worker, "q0", "q1", "q2")
    assert shown(provider.calls[-1]) == last
    assert (await client.conversation("c")).messages == 6


async def test_what_is_old_is_summarised_once_and_remembered(
    client: TurnClient, provider: FakeProvider
) -> None:
    await client.create_conversation(ConversationSettings(memory="summary", memory_k=2), conversation_id="c")
    provider.push("a0", "a1", "a2", "They said q0 and q1.", "a3", "a4")
    async with LocalWorker(client, provider) as worker:
        await talk(client, worker, "q0", "q1", "q2", "q3", "q4")
    *_, asked, third, fourth = provider.calls
    assert "user: q0" in str(asked.messages[-1]["content"])
    assert "q2" not in str(asked.messages[-1]["content"])
    for call, rest in ((third, ["q2", "a2", "q3"]), (fourth, ["q2", "a2", "q3", "a3", "q4"])):
        summary, *window = shown(call)
        assert "They said q0 and q1." in summary
        assert window == rest
    exported = await client.export("c")
    assert exported.summary is not None
    assert (exported.summary.messages, exported.summary.text) == (4, "They said q0 and q1.")
    assert [message.content for message in exported.messages][:2] == ["q0", "a0"]


async def test_a_summary_for_which_a_budget_has_no_room_does_not_cost_the_turn(
    connect: Connect, provider: FakeProvider
) -> None:
    client = await connect(budgets={"tenant": {"max_tokens": Decimal(1_400)}})
    settings = ConversationSettings(memory="summary", memory_k=2, max_tokens=5)
    await client.create_conversation(settings, conversation_id="c")
    async with LocalWorker(client, provider) as worker:
        await talk(client, worker, "q0", "q1", "q2", "q3")
    assert [call.question for call in provider.calls] == ["q0", "q1", "q2", "q3"]


async def test_a_summary_knows_nothing_of_what_was_gone_back_from(
    client: TurnClient, provider: FakeProvider
) -> None:
    await client.create_conversation(ConversationSettings(memory="summary", memory_k=1), conversation_id="c")
    provider.push("a0", "a1", "S of q0.", "a2", "S of q0 and q1.", "a3", "b1", "S of three.", "c1")
    async with LocalWorker(client, provider) as worker:
        await talk(client, worker, "q0", "q1", "q2", "q3")
        await client.history.checkout("c", 1)
        await talk(client, worker, "r1")
        assert shown(provider.calls[-1]) == ["q0", "a0", "r1"]
        await client.history.checkout("c", 4)
        await client.history.compact("c")
        await talk(client, worker, "r2")
    assert "S of q0 and q1." in shown(provider.calls[-2])[0]
    assert "r1" not in str([call.body for call in list(provider.calls)[-2:]])


async def test_a_summary_that_fails_costs_no_answer(client: TurnClient, provider: FakeProvider) -> None:
    await client.create_conversation(ConversationSettings(memory="summary", memory_k=1), conversation_id="c")
    provider.push("a0", "a1", failure(400), "a2")
    async with LocalWorker(client, provider) as worker:
        await talk(client, worker, "q0", "q1", "q2")
    assert shown(provider.calls[-1]) == ["q0", "a0", "q1", "a1", "q2"]
    assert (await client.export("c")).summary is None


async def test_a_branch_and_an_import_remember_the_summary(
    client: TurnClient, provider: FakeProvider
) -> None:
    await client.create_conversation(ConversationSettings(memory="summary", memory_k=2), conversation_id="c")
    provider.push("a0", "a1", "a2", "S of q0.", "a3", "b", "b")
    async with LocalWorker(client, provider) as worker:
        await talk(client, worker, "q0", "q1", "q2", "q3")
        twin = await client.history.branch("c")
        exported = await client.export("c")
        await client.erase("c")
        await client.import_conversation(exported)
        for name in (twin.conversation_id, "c"):
            place = await submit(client, "Again?", conversation_id=name)
            await worker.turns.run(place.turn_id)
            summary, *window = shown(provider.calls[-1])
            assert "S of q0." in summary
            assert window == ["q2", "a2", "q3", "a3", "Again?"]


async def test_a_turn_keeps_what_it_was_claimed_with(client: TurnClient, provider: FakeProvider) -> None:
    await client.create_conversation(
        ConversationSettings(model="m1", system_prompt="One.", tools=["calculator"]), conversation_id="c"
    )
    provider.push("a0", "a1")
    changes = ConversationChanges(model="m2", system_prompt="Two.", tools=None)
    async with LocalWorker(client, provider) as worker:
        await talk(client, worker, "q0")
        await client.history.change("c", changes)
        await talk(client, worker, "q1")
    first, second = provider.calls
    assert (first.body["model"], second.body["model"]) == ("m1", "m2")
    assert [str(call.messages[0]["content"]) for call in provider.calls] == ["One.", "Two."]
    assert [tool["function"]["name"] for tool in first.body["tools"]] == ["calculator"]
    assert "tools" not in second.body
