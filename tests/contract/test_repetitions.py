"""What is asked again means what it meant the first time, however late that is."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from tests.support.turns import answered, claim, crash, die, submit
from tests.support.waiting import eventually
from worker.contract import checks
from worker.contract.client import TurnClient
from worker.contract.errors import Conflict, Gone, InvalidInput, NotFound
from worker.contract.schedule.schemas import ScheduleRequest
from worker.contract.schemas import ConversationChanges, TurnRequest

pytestmark = pytest.mark.anyio


async def test_a_key_holds_for_a_day_though_its_conversation_is_to_live_shorter_from_now_on(
    client: TurnClient,
) -> None:
    place = await answered(client, "Hello?", "Hi", idempotency_key="k", conversation_id="c")
    await client.history.change("c", ConversationChanges(ttl=1))

    async def forgotten() -> bool:
        try:
            await client.turn(place.turn_id)
        except NotFound:
            return True
        return False

    await eventually(forgotten)
    with pytest.raises(Gone):
        await client.submit(TurnRequest(message="Hello?"), idempotency_key="k", conversation_id="c")
    assert (await client.stats()).ready == 0


async def test_a_scheduled_turn_comes_back_also_when_its_time_is_long_over(
    client: TurnClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = TurnRequest(message="Hello?", run_after=time.time() + 5)
    turn = await client.submit(request, idempotency_key="k", conversation_id="c")
    late = SimpleNamespace(time=lambda: time.time() + 3_600)
    monkeypatch.setattr(checks, "time", late)
    again = await client.submit(request, idempotency_key="k", conversation_id="c")
    assert (again.turn_id, again.replayed) == (turn.turn_id, True)
    with pytest.raises(Conflict) as other:
        await client.submit(
            TurnRequest(message="Other", run_after=request.run_after),
            idempotency_key="k",
            conversation_id="c",
        )
    assert other.value.code == "idempotency_mismatch"
    for key in ("new", None):
        with pytest.raises(InvalidInput, match="run_after"):
            await client.submit(request, idempotency_key=key, conversation_id="c")


async def test_a_schedule_comes_back_also_when_its_end_is_over(client: TurnClient) -> None:
    request = ScheduleRequest(
        cron="* * * * * *", turn=TurnRequest(message="Hello?"), ends_at=int(time.time()) + 1.5
    )
    made = await client.schedules.open(request, idempotency_key="k")

    async def over() -> bool:
        try:
            await client.schedules.open(request)
        except InvalidInput:
            return True
        return False

    await eventually(over)
    again = await client.schedules.open(request, idempotency_key="k")
    assert (again.schedule_id, again.replayed) == (made.schedule_id, True)


async def test_an_order_that_stands_already_is_no_conflict(client: TurnClient) -> None:
    """The reply to the first call may be lost."""
    await submit(client, conversation_id="c")
    one, two = [(await submit(client, conversation_id="c")).turn_id for _ in range(2)]
    for _ in range(2):
        assert (await client.reorder("c", [one, two], [two, one])).waiting == [two, one]


async def test_a_dead_letter_that_is_none_is_called_so(client: TurnClient) -> None:
    place = await answered(client, "Hello?", "Hi", conversation_id="c")
    with pytest.raises(NotFound, match=f"turn '{place.turn_id}' is no dead letter"):
        await client.requeue_dead(place.turn_id)
    poison = await submit(client, "poison", conversation_id="c")
    for _ in range(2):
        await crash(client.turns, await claim(client.turns, poison))
    await die(client.turns, await claim(client.turns, poison))
    first = await client.requeue_dead(poison.turn_id)
    assert (await client.requeue_dead(poison.turn_id)).turn_id == first.turn_id
