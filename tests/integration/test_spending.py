"""What budgets are for, with real workers: stopped streams are paid, calls under way cannot overspend."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from decimal import Decimal
from typing import Final

import pytest

from aiforge.core.events import Token
from aiforge.core.types import Usage
from aiforge.testing import FakeProvider, Gate, Reply
from tests.support.processes import Start
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import Turn, TurnRequest, TurnState

pytestmark = pytest.mark.anyio
WORDS: Final = 50


async def start_and_stop(client: TurnClient, message: str) -> Turn:
    """A turn that is cancelled when its reader has seen 50 tokens, unless it ends before."""
    turn = await client.submit(TurnRequest(message=message, max_tokens=2 * WORDS))
    seen = 0
    async for _, event in client.events(turn.turn_id):
        seen += isinstance(event, Token)
        if seen == WORDS:
            await client.cancel(turn.turn_id)
            seen += 1
    return await client.turn(turn.turn_id)


async def test_streams_that_are_stopped_spend_the_budget(
    client: TurnClient, provider: FakeProvider, worker_process: Start
) -> None:
    """It is enough for three turns: each takes something, though no provider says how much."""
    provider.when("stopped", Reply(chunks=["word "] * WORDS + [Gate("never")]))
    worker_process(budgets=json.dumps({"tenant": {"max_usd": "0.00017"}}))
    stopped = [await start_and_stop(client, f"stopped {number}") for number in range(3)]
    refused = await asyncio.gather(*(start_and_stop(client, f"stopped {number}") for number in range(3, 10)))
    for turn in stopped:
        assert (turn.state, turn.error and turn.error.code) == (TurnState.CANCELLED, "cancelled")
        assert turn.cost is not None
        assert turn.cost > Decimal("0.00002")
        assert turn.estimated_cost == turn.cost
    assert {(turn.state, turn.error and turn.error.code, turn.cost) for turn in refused} == {
        (TurnState.FAILED, "budget_exceeded", Decimal(0))
    }
    assert len(provider.calls) == 3
    (used,) = await client.usage(group_by=[])
    assert used.cost == sum(turn.cost for turn in stopped if turn.cost is not None) <= Decimal("0.00017")


async def test_what_is_reserved_for_calls_under_way_is_never_overspent(
    client: TurnClient, provider: FakeProvider, worker_process: Start
) -> None:
    """Each of 16 calls at once reserves $0.0133, and takes it: seven fit into $0.10."""
    provider.when("hello", Reply(chunks=["ok", Gate("release")], usage=Usage(0, 100)))
    worker_process(
        concurrency="16",
        budgets=json.dumps({"tenant": {"max_usd": "0.10"}}),
        models=json.dumps({"gpt-4o-mini": {"input": "0", "output": "133"}}),
    )
    posted = [await client.submit(TurnRequest(message="hello", max_tokens=100)) for _ in range(16)]

    async def refused() -> bool:
        states = [(await client.turn(turn.turn_id)).state for turn in posted]
        return states.count(TurnState.FAILED) == 9

    await eventually(refused, 30)
    assert len(provider.calls) == 7
    provider.open("release")
    turns = await asyncio.gather(*(client.wait(turn.turn_id, 30) for turn in posted))
    assert Counter((turn.state, turn.error and turn.error.code) for turn in turns) == {
        (TurnState.COMPLETED, None): 7,
        (TurnState.FAILED, "budget_exceeded"): 9,
    }
    assert sum(turn.cost or 0 for turn in turns) == 7 * Decimal("0.0133") <= Decimal("0.10")
