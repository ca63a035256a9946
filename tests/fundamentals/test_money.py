"""Money: every request to a provider is written down before it is made, and counted once whatever happens."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.support.turns import claim, crash, paid, submit
from worker.contract.client import TurnClient

pytestmark = pytest.mark.anyio


async def test_money(client: TurnClient) -> None:
    # With the claim, the first call stands in the ledger as intended: a dead worker does not hide it.
    first = await claim(client.turns, await submit(client))
    turn_id = first.claim.place.turn_id
    assert await outcomes(client, turn_id) == ["intended"]

    # The worker does die. Nobody knows what the call cost, and unknown is not zero: it is lost.
    await crash(client.turns, first)
    assert await outcomes(client, turn_id) == ["lost"]

    # The second attempt makes a call of its own and settles it with its commit, exact to the last digit.
    second = await claim(client.turns, first.claim.place)
    price = Decimal("0.000184918125")
    await second.answer("Lisbon.", calls=[paid(second.call_id, cost=price)])
    assert await outcomes(client, turn_id) == ["lost", "ok"]
    assert await spent(client) == price

    # The first worker turns up after all. Its answer is refused; what it spent is spent, and counted now.
    late = [paid(first.call_id, cost=Decimal("0.0001"))]
    assert not (await first.answer("Lisbon!", calls=late)).accepted
    assert await outcomes(client, turn_id) == ["ok", "ok"]
    assert await spent(client) == Decimal("0.000284918125")

    # However often it says so.
    await first.answer("Lisbon!", calls=late)
    assert await spent(client) == Decimal("0.000284918125")


async def outcomes(client: TurnClient, turn_id: str) -> list[str]:
    return sorted(call.outcome for call in await client.turns.calls(turn_id))


async def spent(client: TurnClient) -> Decimal:
    return sum((sums.get("usd", Decimal(0)) for sums in (await client.stats()).totals.values()), Decimal(0))
