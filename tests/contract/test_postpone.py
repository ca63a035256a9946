"""A turn that waits for room in a budget leaves its conversation's line, and joins it again in time."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.turns import Running, answered, claim, crash, paid, rows, state, submit
from worker.contract.batch.item_places import goes_on, postpone
from worker.contract.client import TurnClient
from worker.contract.schemas import BatchItem, BatchRequest, TurnState

pytestmark = pytest.mark.anyio


async def running(client: TurnClient) -> Running:
    return await claim(client.turns, await submit(client, conversation_id="c"))


async def test_the_next_turn_goes_first(client: TurnClient) -> None:
    first = await running(client)
    second = await submit(client, conversation_id="c")
    for _ in range(2):
        assert await postpone(client.turns, first.claim, 3_600, calls=[]) == ("ok", second.turn_id)
    turn = await client.turn(first.claim.place.turn_id)
    assert (turn.state, turn.attempts) == (TurnState.SCHEDULED, 0)
    assert turn.run_after is not None
    assert 3_500 < turn.run_after - turn.created_at <= 3_700
    assert await rows(client.turns, turn.turn_id) == [], "the call was never made"
    await (await claim(client.turns, second)).answer("Hi")
    assert (await client.line("c")).active is None


async def test_it_joins_the_line_when_its_time_has_come(client: TurnClient) -> None:
    first = await running(client)
    place = first.claim.place
    failed = msgspec.structs.replace(paid(first.call_id), outcome="error")
    assert await postpone(client.turns, first.claim, 0, calls=[failed]) == ("ok", None)
    assert await client.turns.due(place) is None
    await client.connection.command(
        "ZADD", client.turns.keys.due(int(place.turn_id[:2])), "XX", 0, place.turn_id
    )
    assert await client.turns.due(place) == place.turn_id
    again = await claim(client.turns, place)
    assert again.claim.attempt == 1
    await again.answer("Hi")
    assert [call.outcome for call in await client.turns.calls(place.turn_id)] == ["error", "ok"]


async def test_who_no_longer_holds_the_turn_postpones_nothing(client: TurnClient) -> None:
    late = await running(client)
    await crash(client.turns, late)
    assert (await postpone(client.turns, late.claim, 1, calls=[]))[0] == "refused"
    current = await claim(client.turns, late.claim.place)
    assert (await postpone(client.turns, late.claim, 1, calls=[]))[0] == "refused"
    await client.cancel(current.claim.place.turn_id)
    assert (await postpone(client.turns, current.claim, 1, calls=[]))[0] == "cancel"
    assert await state(client, current.claim.place) is TurnState.RUNNING


async def test_a_postponed_turn_can_be_cancelled_and_erased(client: TurnClient) -> None:
    first = await running(client)
    await postpone(client.turns, first.claim, 3_600, calls=[])
    await answered(client, "Hello?", "Hi", conversation_id="c")
    assert (await client.cancel(first.claim.place.turn_id)).state is TurnState.CANCELLED
    second = await running(client)
    await postpone(client.turns, second.claim, 3_600, calls=[])
    assert (await client.erase("c")).turns == 3


async def test_an_item_is_wanted_while_its_batch_is_in_progress(client: TurnClient) -> None:
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="Hello?", conversation="c")]))
    assert await goes_on(client.turns, batch.batch_id)
    await client.cancel_batch(batch.batch_id)
    assert not await goes_on(client.turns, batch.batch_id)
