"""The recorder: tells the ledger of each call before it is made and after it ended."""

from __future__ import annotations

import pytest

from aiforge.core.types import Usage
from tests.support.slices import Sliced, take
from tests.support.turns import claim, intended, paid, submit
from worker.calls.ledger import Recorder
from worker.calls.lost import lost_calls, lost_items
from worker.contract.client import TurnClient
from worker.contract.places import Place
from worker.contract.schemas import BatchItem, BatchRequest, ConversationSettings, TurnRequest

pytestmark = pytest.mark.anyio


async def rows(client: TurnClient, turn_id: str) -> dict[str, str]:
    return {call.call_id: call.outcome for call in await client.turns.calls(turn_id)}


async def test_calls_are_written_down_before_they_are_made(client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client), token="t")
    turn_id = running.claim.place.turn_id
    recorder = Recorder(client.turns, turn_id, f"{turn_id}.t", intended(""), tenant="default")
    first = recorder.next_call_id()
    assert first == recorder.first.call_id == running.call_id
    await recorder.intend(intended(first), Usage)
    recorder.settle(paid(first))
    assert await rows(client, turn_id) == {first: "intended"}, "the claim entered it, the commit settles it"

    second = recorder.next_call_id()
    assert second == f"{turn_id}.t.2"
    await recorder.intend(intended(second), Usage)
    assert await rows(client, turn_id) == {first: "ok", second: "intended"}
    recorder.settle(paid(second))
    assert [call.call_id for call in recorder.made] == [first, second]
    assert recorder.take() == [paid(second)]
    assert recorder.take() == []


LONG = "word " * 800
"""Of a thousand tokens."""


@pytest.mark.parametrize("own", [None, "Be brief."])
async def test_a_lost_call_was_sent_its_system_prompt_too(client: TurnClient, own: str | None) -> None:
    settings = ConversationSettings(system_prompt=LONG)
    await client.create_conversation(settings, conversation_id="c")
    request = TurnRequest(message="Hello?", system_prompt=own)
    place = Place((await client.submit(request, conversation_id="c")).turn_id, "default", "c")
    await claim(client.turns, place)
    (lost,) = await lost_calls(client.turns, place, {})
    assert lost.usage is not None
    assert lost.usage.estimated
    assert (lost.usage.input_tokens >= 1_000) == (own is None)


@pytest.mark.parametrize("own", [None, "Be brief."])
async def test_so_was_that_of_an_item(client: TurnClient, own: str | None) -> None:
    items = [BatchItem(message="Hello?", system_prompt=own)]
    batch = await client.submit_batch(BatchRequest(items=items, system_prompt=LONG))
    sliced = await take(client.batches, batch.batch_id)
    assert isinstance(sliced, Sliced)
    (lost,) = await lost_items(client.batches, sliced.taken, {})
    assert lost.usage is not None
    assert (lost.usage.input_tokens >= 1_000) == (own is None)
