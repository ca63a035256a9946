"""Items that continue a conversation, run as turns of it by the slice runner."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Final

import msgspec
import pytest

from aiforge.core.types import Usage
from aiforge.testing import FakeProvider, Gate, Reply, ToolCall, failure
from tests.support.runners import LocalWorker
from tests.support.turns import Connect, claim, paid
from tests.support.turns import submit as submit_turn
from tests.support.waiting import eventually
from worker.contract.batch.item_places import item_place
from worker.contract.calls.budget_limits import limit
from worker.contract.calls.budgets import Budget, BudgetStore, Need
from worker.contract.client import TurnClient
from worker.contract.errors import NotFound
from worker.contract.schemas import (
    Batch,
    BatchItem,
    BatchRequest,
    BatchState,
    ConversationSettings,
    TurnRequest,
    TurnState,
)
from worker.running import item_turns

pytestmark = pytest.mark.anyio


async def submit(client: TurnClient, *items: tuple[str, str | None]) -> Batch:
    """A batch of (message, conversation)."""
    made = [BatchItem(message=message, conversation=conversation) for message, conversation in items]
    return await client.submit_batch(BatchRequest(items=made, system_prompt="Be brief."))


async def run_all(client: TurnClient, worker: LocalWorker, batch: Batch) -> Batch:
    while (batch := await client.batch(batch.batch_id)).state is BatchState.IN_PROGRESS:
        await worker.slices.run(batch.batch_id)
    return batch


async def said(client: TurnClient, conversation: str) -> list[object]:
    """What the user said, in order."""
    messages = await client.messages(conversation)
    return [message.content for message in messages if message.role == "user"]


async def test_lines_are_turns_that_remember(client: TurnClient, provider: FakeProvider) -> None:
    provider.when("two", failure(400))
    batch = await submit(client, ("one", "a"), ("alone", None), ("two", "a"), ("three", "a"))
    async with LocalWorker(client, provider) as worker:
        done = await run_all(client, worker, batch)
    assert (done.state, done.completed, done.failed) == (BatchState.COMPLETED, 3, 1)
    assert await said(client, "a") == ["one", "three"]
    third = next(call for call in provider.calls if call.question == "three")
    assert [message["role"] for message in third.messages] == ["system", "user", "assistant", "user"]
    rows = await client.results(batch.batch_id)
    assert [row.error.code if row.error else None for row in rows] == [None, None, "provider_refused", None]
    assert all(row.attempts == 1 for row in rows)


async def test_the_batch_costs_what_its_turns_and_items_cost(
    client: TurnClient, provider: FakeProvider
) -> None:
    provider.when("two", failure(503), times=1)
    batch = await submit(client, ("one", "a"), ("alone", None), ("two", "a"))
    async with LocalWorker(client, provider) as worker:
        done = await run_all(client, worker, batch)
    rows = await client.results(batch.batch_id)
    assert done.cost == sum((row.cost or 0 for row in rows), Decimal(0)) > 0
    totals = (await client.stats()).totals["openai", "gpt-4o-mini"]
    assert (totals["usd"], int(totals["input"])) == (done.cost, done.usage.input_tokens)
    assert sum((usage.cost or 0 for usage in await client.usage()), Decimal(0)) == done.cost


async def test_a_busy_conversation_is_waited_for_whatever_it_says_of_turns(
    client: TurnClient, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_turns, "LOOK_SECONDS", 0.2)
    await client.create_conversation(ConversationSettings(on_busy="reject"), conversation_id="a")
    other = await submit_turn(client, "mine", conversation_id="a")
    running = await claim(client.turns, other)
    batch = await submit(client, ("line", "a"))
    async with LocalWorker(client, provider) as worker:
        slice_run = worker.start_slice(batch.batch_id)

        async def in_line() -> bool:
            return len((await client.line("a")).waiting) == 1

        await eventually(in_line)
        await running.answer("done")
        await slice_run
    assert await said(client, "a") == ["mine", "line"]
    assert (await client.batch(batch.batch_id)).completed == 1


async def test_a_conversation_that_stays_busy_is_given_up(
    client: TurnClient, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_turns, "BUSY_SECONDS", 0.0)
    await claim(client.turns, await submit_turn(client, "mine", conversation_id="a"))
    batch = await submit(client, ("line", "a"))
    async with LocalWorker(client, provider) as worker:
        await run_all(client, worker, batch)
    (row,) = await client.results(batch.batch_id)
    assert row.error is not None
    assert (row.error.code, row.error.retryable) == ("conversation_busy", True)
    assert (await client.line("a")).waiting == []


async def test_no_line_brings_an_erased_conversation_back(client: TurnClient, provider: FakeProvider) -> None:
    provider.when("one", Reply(chunks=["x", Gate("never")]))
    batch = await submit(client, ("one", "a"), ("two", "a"))
    async with LocalWorker(client, provider) as worker:
        running = worker.start_slice(batch.batch_id)
        await provider.wait_until_async(lambda: len(provider.calls) == 1)
        turn_id, _, _ = (provider.calls[0].call_id or "").partition(".")
        await client.erase("a")
        worker.leases.stop(turn_id, "lost")
        await running
        await run_all(client, worker, batch)
    rows = await client.results(batch.batch_id)
    assert [row.error and row.error.code for row in rows] == ["conversation_erased"] * 2
    assert (await client.batch(batch.batch_id)).state is BatchState.COMPLETED
    assert len(provider.calls) == 1
    with pytest.raises(NotFound):
        await client.conversation("a")


async def test_a_question_to_a_human_ends_the_line(client: TurnClient, provider: FakeProvider) -> None:
    asks = Reply(tool_calls=[ToolCall("ask_human", {"question": "Which one?"})])
    provider.when("one", asks, times=1)
    items = [BatchItem(message=message, conversation="a") for message in ("one", "two")]
    batch = await client.submit_batch(BatchRequest(items=items, tools=["ask_human"]))
    async with LocalWorker(client, provider) as worker:
        done = await run_all(client, worker, batch)
    first, second = await client.results(batch.batch_id)
    assert first.error is not None
    assert (first.error.code, second.status) == ("invalid_config", "ok")
    assert done.cost == (await client.stats()).totals["openai", "gpt-4o-mini"]["usd"]


OTHER: Final = Budget("tenant", limit("max_tokens", Decimal(30_000)))


async def full(connect: Connect) -> TurnClient:
    """The tenant's budget has room for short answers only, for as long as a call is under way."""
    client = await connect(budgets={"tenant": {"max_tokens": OTHER.limit.amount}})
    store = BudgetStore(client.connection, client.settings)
    assert await store.reserve("default", "other", [OTHER], Need(20_000, None), seconds=600) is None
    return client


async def is_scheduled(client: TurnClient, turn_id: str) -> bool:
    return (await client.turn(turn_id)).state is TurnState.SCHEDULED


async def joins_its_line(client: TurnClient, worker: LocalWorker, turn_id: str) -> None:
    async def joined() -> bool:
        await worker.reaper.tick()
        return not await is_scheduled(client, turn_id)

    await eventually(joined)


async def test_an_item_waits_for_room_in_a_budget_and_its_conversation_goes_on(
    connect: Connect, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it keep its slot meanwhile."""
    monkeypatch.setattr(item_turns, "LOOK_SECONDS", 600.0)
    client = await full(connect)
    batch = await submit(client, ("line", "a"))
    turn_id = item_place("default", "a", batch.batch_id, 0, 0).turn_id
    async with LocalWorker(client, provider) as worker:
        async with asyncio.timeout(40):
            await worker.slices.run(batch.batch_id)
        assert await is_scheduled(client, turn_id)
        assert (await client.line("a")).active is None
        chat = await client.submit(TurnRequest(message="chat", max_tokens=5), conversation_id="a")
        await worker.turns.run(chat.turn_id)
        assert (await client.turn(chat.turn_id)).state is TurnState.COMPLETED
        store = BudgetStore(client.connection, client.settings)
        nothing = msgspec.structs.replace(paid("other"), usage=Usage(), cost=None)
        await store.settle("default", [nothing])
        await joins_its_line(client, worker, turn_id)
        done = await run_all(client, worker, batch)
    assert (done.completed, done.failed) == (1, 0)
    assert await said(client, "a") == ["chat", "line"]
    assert (await client.turn(turn_id)).attempts == 1
    assert len(await client.turns.calls(turn_id)) == 1


async def test_an_item_that_waits_for_room_is_not_run_for_a_batch_that_is_over(
    connect: Connect, provider: FakeProvider
) -> None:
    client = await full(connect)
    batch = await submit(client, ("line", "a"))
    turn_id = item_place("default", "a", batch.batch_id, 0, 0).turn_id
    async with LocalWorker(client, provider) as worker:
        await worker.slices.run(batch.batch_id)
        await client.cancel_batch(batch.batch_id)
        await joins_its_line(client, worker, turn_id)
        await worker.turns.run(turn_id)
    assert (await client.turn(turn_id)).state is TurnState.CANCELLED
    assert (len(provider.calls), await client.messages("a")) == (0, [])


async def test_an_item_fails_for_which_there_will_never_be_room(
    connect: Connect, provider: FakeProvider
) -> None:
    client = await connect(budgets={"tenant": {"max_tokens": Decimal(1_000)}})
    batch = await submit(client, ("line", "a"))
    async with LocalWorker(client, provider) as worker:
        await run_all(client, worker, batch)
    (row,) = await client.results(batch.batch_id)
    assert row.error is not None
    assert row.error.code == "budget_exceeded"


async def test_the_budget_of_a_batch_holds_its_turns_too(connect: Connect, provider: FakeProvider) -> None:
    client = await connect(budgets={"batch": {"max_requests": Decimal(2)}})
    batch = await submit(client, ("one", "a"), ("alone", None), ("two", "a"), ("three", "a"))
    async with LocalWorker(client, provider) as worker:
        done = await run_all(client, worker, batch)
    assert (done.completed, done.failed, len(provider.calls)) == (2, 2, 2)
    rows = await client.results(batch.batch_id)
    assert {row.error.code for row in rows if row.error} == {"budget_exceeded"}


async def test_a_drained_worker_hands_both_back(client: TurnClient, provider: FakeProvider) -> None:
    provider.when("one", Reply(chunks=["x", Gate("never")]), times=1)
    batch = await submit(client, ("one", "a"), ("two", "a"))
    async with LocalWorker(client, provider) as worker:
        running = worker.start_slice(batch.batch_id)
        await provider.wait_until_async(lambda: len(provider.calls) == 1)
        worker.leases.stop_all("handed_back")
        await running
        assert (await client.stats()).running == 0
    async with LocalWorker(client, provider) as other:
        done = await run_all(client, other, batch)
    assert (done.completed, len(provider.calls)) == (2, 3)
    assert await said(client, "a") == ["one", "two"]
    assert done.cost == (await client.stats()).totals["openai", "gpt-4o-mini"]["usd"]
