"""What a batch's provider calls count to: its own sums and its tenant's usage; and what was never made."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import msgspec
import pytest

from aiforge.core.types import ProviderCall, Usage
from tests.support.servers import RedisServer
from tests.support.slices import Sliced, kill, take
from tests.support.turns import COST, USAGE, paid
from worker.contract.client import TurnClient
from worker.contract.schemas import BatchItem, BatchRequest, Caller

pytestmark = pytest.mark.anyio

GUESS = Usage(7, 3, estimated=True)
GUESSED = Decimal("0.000254694460")
"""In binary it is a little less than that many units."""


def request(count: int) -> BatchRequest:
    return BatchRequest(items=[BatchItem(message=f"question {number}") for number in range(count)])


async def running(client: TurnClient, batch_id: str) -> Sliced:
    taken = await take(client.batches, batch_id)
    assert isinstance(taken, Sliced)
    return taken


def lost(call_id: str, cost: Decimal | None) -> ProviderCall:
    return msgspec.structs.replace(paid(call_id), outcome="lost", usage=GUESS, cost=cost)


async def dies(client: TurnClient, batch_id: str, calls: Sequence[ProviderCall]) -> None:
    """Its worker does, and the reaper knows no more than an estimate."""
    await kill(client.batches, batch_id, 0)
    await client.turns.ledger(batch_id, "acme", settled=calls, intended=[])


async def test_a_batch_counts_to_its_own_tenant(client: TurnClient) -> None:
    acme = client.of(Caller("acme"))
    batch = await acme.submit_batch(request(3))
    while isinstance(taken := await take(client.batches, batch.batch_id), Sliced):
        await taken.answer_all()
    (used,) = await acme.usage(group_by=["purpose", "model"])
    assert (used.purpose, used.model, used.calls, used.cost) == ("answer", "m", 3, 3 * COST)
    assert (used.input_tokens, used.output_tokens) == (3 * USAGE.input_tokens, 3 * USAGE.output_tokens)
    assert (await acme.batch(batch.batch_id)).cost == 3 * COST
    assert await client.usage(group_by=[]) == []


@pytest.mark.parametrize("cost", [GUESSED, None], ids=["priced", "unpriced"])
async def test_a_lost_call_of_a_batch_counts_everywhere_until_it_is_told(
    client: TurnClient, cost: Decimal | None
) -> None:
    acme = client.of(Caller("acme"))
    batch_id = (await acme.submit_batch(request(1))).batch_id
    taken = await running(client, batch_id)
    for _ in range(2):
        await dies(client, batch_id, [lost(taken.call_id(0), cost)])
    batch, (used,) = await acme.batch(batch_id), await acme.usage(group_by=[])
    assert (batch.cost, batch.estimated_cost) == (cost or 0, cost or 0)
    assert (batch.unpriced_calls, batch.usage.input_tokens) == (int(cost is None), 7)
    assert (used.cost, used.estimated_cost, used.lost_calls) == (cost or 0, cost or 0, 1)
    assert (used.unpriced_calls, used.input_tokens, used.output_tokens) == (int(cost is None), 7, 3)
    for _ in range(2):
        await client.turns.ledger(batch_id, "acme", settled=[paid(taken.call_id(0))], intended=[])
    batch, (used,) = await acme.batch(batch_id), await acme.usage(group_by=[])
    assert (batch.cost, batch.estimated_cost, batch.unpriced_calls) == (COST, Decimal(0), 0)
    assert batch.usage.input_tokens == USAGE.input_tokens
    assert (used.cost, used.estimated_cost, used.lost_calls, used.calls) == (COST, Decimal(0), 0, 1)
    assert (used.unpriced_calls, used.input_tokens) == (0, USAGE.input_tokens)


async def test_an_item_that_takes_a_kept_answer_has_made_no_call(client: TurnClient) -> None:
    """Nor has it when its slice dies later on."""
    batch_id = (await client.submit_batch(request(1))).batch_id
    taken = await running(client, batch_id)
    assert [call.outcome for call in await client.turns.calls(batch_id)] == ["intended"]
    kept = msgspec.structs.replace(taken.row(0), cached=True, attempts=0, cost=Decimal(0), usage=None)
    assert (await taken.store([kept])).accepted
    assert await client.turns.calls(batch_id) == []
    assert (await client.batch(batch_id)).saved_calls == 1
    await kill(client.batches, batch_id, 0)
    assert await client.turns.calls(batch_id) == []
    assert await client.usage(group_by=[]) == []


async def test_a_late_word_of_a_batch_that_was_deleted_counts_without_it(
    client: TurnClient, server: RedisServer
) -> None:
    batch_id = (await client.submit_batch(request(1))).batch_id
    taken = await running(client, batch_id)
    await taken.answer_all()
    await client.delete_batch(batch_id)
    late = paid(taken.call_id(0, 2))
    await client.turns.ledger(batch_id, "default", settled=[late], intended=[])
    (used,) = await client.usage(group_by=[])
    assert (used.calls, used.cost) == (2, 2 * COST)
    assert not server.ask("EXISTS", client.turns.keys.batch(batch_id))


async def test_a_ledger_lives_as_long_as_its_batch_whatever_comes_late(
    client: TurnClient, server: RedisServer
) -> None:
    batch_id = (await client.submit_batch(request(1))).batch_id
    taken = await running(client, batch_id)
    await taken.answer_all()
    names = client.turns.keys.batch(batch_id), client.turns.keys.ledger(batch_id)
    await client.turns.ledger(batch_id, "default", settled=[paid(taken.call_id(0, 2))], intended=[])
    batch_ms, ledger_ms = (server.ask("PTTL", name) for name in names)
    assert batch_ms > 0
    assert ledger_ms == pytest.approx(batch_ms, abs=10_000)
    await client.delete_batch(batch_id)
    assert not (await taken.store([], calls=[paid(taken.call_id(0, 3))])).accepted
    assert 0 < server.ask("PTTL", names[1]) <= 86_400_000, "nobody else would ever remove it"
