"""The recorder: tells the ledger of each call before it is made and after it ended."""

from __future__ import annotations

import pytest

from aiforge.core.types import Usage
from tests.support.turns import claim, intended, paid, submit
from worker.calls.ledger import Recorder
from worker.contract.client import TurnClient

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
