"""Usage by day is the ledger's sum, whichever way it is cut."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal

import msgspec
import pytest

from aiforge.core.types import Purpose, Usage
from tests.support.servers import RedisServer
from tests.support.turns import COST, LOST, USAGE, claim, crash, intended, lost, paid, submit
from worker.contract.calls.rows import Days
from worker.contract.calls.usage import today
from worker.contract.client import TurnClient
from worker.contract.errors import InvalidInput
from worker.contract.schemas import Caller

pytestmark = pytest.mark.anyio


async def test_every_call_is_counted_once_in_each_group(client: TurnClient) -> None:
    for number in range(3):
        running = await claim(client.turns, await submit(client, conversation_id=f"c{number}"))
        calls = [
            paid(running.call_id),
            msgspec.structs.replace(paid(f"{running.call_id}x"), purpose="summary"),
        ]
        await running.answer("Hi", calls=calls)
        await running.answer("Hi", calls=calls)
    await crash(client.turns, await claim(client.turns, await submit(client)))
    whole = await client.usage(group_by=[])
    assert [(row.calls, row.lost_calls, row.cost) for row in whole] == [(7, 1, 6 * COST)]
    by_purpose = await client.usage(group_by=["purpose", "model"])
    assert {(row.purpose, row.model): (row.calls, row.input_tokens) for row in by_purpose} == {
        ("answer", "m"): (4, 3 * USAGE.input_tokens),
        ("summary", "m"): (3, 3 * USAGE.input_tokens),
    }
    (day,) = await client.usage(group_by=["day"])
    assert day.day == today().isoformat()
    assert await client.usage(first=date(2020, 1, 1), last=date(2020, 1, 31)) == []
    totals = (await client.stats()).totals
    assert day.cost == sum((sums.get("usd", Decimal(0)) for sums in totals.values()), Decimal(0))


async def test_a_lost_call_that_is_settled_late_is_lost_no_more(client: TurnClient) -> None:
    place = await submit(client)
    running = await claim(client.turns, place)
    await crash(client.turns, running)
    await client.turns.ledger(place.turn_id, "default", settled=[paid(running.call_id)], intended=[])
    (row,) = await client.usage(group_by=[])
    assert (row.calls, row.lost_calls, row.cost) == (1, 0, COST)


async def test_a_call_counts_on_the_day_on_which_it_was_entered(client: TurnClient) -> None:
    """Also one that is lost or ends after midnight: so days add up to the rows that have their date."""
    place = await submit(client)
    running = await claim(client.turns, place)
    (row,) = await client.turns.calls(place.turn_id)
    yesterday = today() - timedelta(days=1)
    assert row.at is not None
    entered = msgspec.structs.replace(row, at=row.at - 86_400_000)
    ledger = client.turns.keys.ledger(place.turn_id)
    await client.connection.command("HSET", ledger, row.call_id, msgspec.json.encode(entered))

    async def counted(day: date) -> list[tuple[int, int, Decimal]]:
        rows = await client.usage(first=day, last=day, group_by=[])
        return [(found.calls, found.lost_calls, found.cost) for found in rows]

    await crash(client.turns, running, [msgspec.structs.replace(lost(row.call_id), at=entered.at)])
    assert await counted(yesterday) == [(1, 1, LOST)]
    await client.turns.ledger(place.turn_id, "default", settled=[paid(row.call_id)], intended=[])
    assert await counted(yesterday) == [(1, 0, COST)]
    assert await counted(today()) == []
    page = await client.ledger.page(turn_id=place.turn_id, days=Days(yesterday, yesterday))
    assert [call.cost for call in page.found] == [COST]


async def test_a_models_name_may_hold_anything(client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client))
    name = 'my|model: "a" {b}'
    await running.answer("Hi", calls=[msgspec.structs.replace(paid(running.call_id), model=name)])
    (row,) = await client.usage(group_by=["provider", "model"])
    assert (row.provider, row.model, row.cost) == ("openai", name, COST)
    assert (await client.stats()).totals["openai", name]["usd"] == COST


async def test_each_purpose_has_its_name(client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client))
    purposes: tuple[Purpose, ...] = ("answer", "tool_round", "summary")
    calls = [
        msgspec.structs.replace(paid(f"{running.call_id}{number}"), purpose=purpose)
        for number, purpose in enumerate(purposes)
    ]
    await running.answer("Hi", calls=calls)
    rows = await client.usage(group_by=["purpose"])
    assert {(row.purpose, row.cost) for row in rows} == {(purpose, COST) for purpose in purposes}


async def test_a_call_that_outlives_an_erase_is_still_its_tenants(client: TurnClient) -> None:
    place = await submit(client.of(Caller("acme")), conversation_id="c")
    running = await claim(client.turns, place)
    second, third = (f"{running.call_id[:-1]}{number}" for number in (2, 3))
    await client.of(Caller("acme")).erase("c")
    await client.turns.ledger(place.turn_id, "acme", settled=[paid(second)], intended=[])
    assert not (await running.answer("Hi", calls=[paid(third)])).accepted
    (row,) = await client.of(Caller("acme")).usage()
    assert (row.calls, row.cost) == (2, 2 * COST)
    assert await client.usage() == []


async def test_a_million_tenths_of_a_millionth(client: TurnClient) -> None:
    """Sums are integers: nothing is rounded away."""
    place = await submit(client)
    tiny = [
        msgspec.structs.replace(
            intended(f"{place.turn_id}.t.{number}"),
            outcome="ok",
            usage=Usage(input_tokens=1),
            cost=Decimal("1e-7"),
        )
        for number in range(1_000)
    ]
    await client.turns.ledger(place.turn_id, "default", settled=tiny, intended=[])
    (row,) = await client.usage()
    assert row.cost == Decimal("0.0001")


async def test_a_day_is_kept_for_400_days(client: TurnClient, server: RedisServer) -> None:
    running = await claim(client.turns, await submit(client))
    await running.answer("Hi")
    (name,) = server.ask("KEYS", f"*{client.settings.namespace}:*:usage:*")
    assert 0 < server.ask("PTTL", name) <= 400 * 86_400_000


async def test_the_first_days_of_all_can_be_asked_for(client: TurnClient) -> None:
    assert await client.usage(last=date.min) == []
    assert await client.usage(first=date.max, last=date.max) == []


async def test_what_cannot_be_asked(client: TurnClient) -> None:
    with pytest.raises(InvalidInput, match="must be day, provider, model or purpose"):
        await client.usage(group_by=["tenant"])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="from lies behind to"):
        await client.usage(first=today(), last=today() - timedelta(days=1))
    with pytest.raises(InvalidInput, match="400 days"):
        await client.usage(first=date(2020, 1, 1), last=date(2024, 1, 1))
