"""Budgets where windows end while calls are under way, and where workers are gone that held some of them."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Final

import pytest

from aiforge.core.types import ProviderCall, Usage
from tests.support.servers import RedisServer
from tests.support.waiting import eventually
from worker.contract.calls.budget_limits import Limit
from worker.contract.calls.budgets import Budget, BudgetStore, Need
from worker.contract.client import TurnClient

pytestmark = pytest.mark.anyio

SECONDS: Final = 3
"""Windows long enough for a few commands on a busy machine, short enough to be waited for."""
TOKENS: Final = Budget("tenant", Limit("tokens", SECONDS, 100))
ALL: Final = Need(tokens=100, usd=None)
LONG: Final = 600.0


@pytest.fixture
def budgets(client: TurnClient) -> BudgetStore:
    return BudgetStore(client.connection, client.settings)


def took(call_id: str, tokens: int) -> ProviderCall:
    return ProviderCall(
        call_id=call_id, purpose="answer", provider="openai", model="m", outcome="ok",
        usage=Usage(tokens, 0), cost=Decimal(0),
    )  # fmt: skip


async def window(budgets: BudgetStore) -> int:
    """The window that it is, by Redis's clock."""
    now, _ = await budgets._connection.command("TIME")
    return int(now) // SECONDS


async def next_window(budgets: BudgetStore) -> None:
    known = await window(budgets)

    async def begun() -> bool:
        return await window(budgets) > known

    await eventually(begun)


async def test_the_first_call_of_a_window_finds_all_of_it(budgets: BudgetStore) -> None:
    await next_window(budgets)
    assert await budgets.reserve("t", "first", [TOKENS], ALL, seconds=LONG) is None
    await budgets.settle("t", [took("first", 100)])
    await next_window(budgets)
    assert await budgets.reserve("t", "second", [TOKENS], ALL, seconds=LONG) is None
    await budgets.settle("t", [took("second", 7)])
    assert await budgets.used("t", TOKENS) == 7


async def test_a_call_counts_to_the_window_in_which_it_ends(budgets: BudgetStore) -> None:
    await next_window(budgets)
    for call_id in ("ends", "goes on"):
        assert await budgets.reserve("t", call_id, [TOKENS], Need(50, None), seconds=LONG) is None
    await budgets.settle("t", [took("ends", 50)])
    await next_window(budgets)
    await budgets.settle("t", [took("goes on", 40)])
    assert await budgets.used("t", TOKENS) == 40


async def test_a_call_holds_its_room_in_each_window_that_it_goes_on_in(budgets: BudgetStore) -> None:
    assert await budgets.reserve("t", "goes on", [TOKENS], Need(50, None), seconds=LONG) is None
    for _ in range(2):
        refused = await budgets.reserve("t", "large", [TOKENS], ALL, seconds=LONG)
        assert refused is not None
        assert (refused.used, refused.held) == (0, 50)
        await next_window(budgets)
    await budgets.settle("t", [took("goes on", 0)])


async def test_what_several_dead_workers_held_counts_at_once(
    budgets: BudgetStore, server: RedisServer, namespace: str
) -> None:
    ever = Budget("tenant", Limit("tokens", 0, 100))
    await budgets.reserve("t", "lives", [ever], Need(1, None), seconds=30.0)
    for number in range(3):
        await budgets.reserve("t", f"dead-{number}", [ever], Need(30, None), seconds=0.5)
    (until,) = server.ask("KEYS", f"*{namespace}:budget:t*:until")
    await eventually(lambda: server.ask("ZCOUNT", until, "-inf", time.time() * 1000 - 1) == 3)
    refused = await budgets.reserve("t", "large", [ever], ALL, seconds=LONG)
    assert refused is not None
    assert (refused.used, refused.held) == (90, 1)
    await budgets.settle("t", [took("lives", 1)])
    assert await budgets.used("t", ever) == 91


async def test_a_call_that_is_over_leaves_nothing_but_what_it_took(
    budgets: BudgetStore, server: RedisServer, namespace: str
) -> None:
    await budgets.reserve("t", "call", [TOKENS], ALL, seconds=LONG)
    assert len(server.ask("KEYS", f"*{namespace}:budget:*")) == 3
    await budgets.settle("t", [took("call", 1)])
    (left,) = server.ask("KEYS", f"*{namespace}:budget:*")
    assert left.endswith(b":budget:tenant")


async def test_a_window_is_remembered_though_its_owner_is_not(
    budgets: BudgetStore, server: RedisServer
) -> None:
    day = Budget("conversation:c", Limit("tokens", 86_400, 100))
    await budgets.reserve("t", "call", [day], ALL, seconds=LONG, lives=1.0)
    await budgets.settle("t", [took("call", 1)])
    (name,) = server.ask("KEYS", "*:budget:conversation:c")
    left = 86_400 - time.time() % 86_400
    assert float(server.ask("PTTL", name)) / 1000 == pytest.approx(left, abs=30)


async def test_who_is_forgotten_takes_nothing_of_others_along(budgets: BudgetStore) -> None:
    """A call that goes on holds what it held of each of them, and leaves it when it ends."""
    others = [Budget("tenant", Limit("tokens", 0, 100)), Budget("batch:b", Limit("tokens", 0, 100))]
    own = Budget("conversation:c", Limit("tokens", 0, 100))
    await budgets.reserve("t", "call", [others[0], own, others[1]], ALL, seconds=LONG)
    await budgets.forget("t", own.scope)
    await budgets.settle("t", [took("call", 30)])
    for number, budget in enumerate(others):
        refused = await budgets.reserve("t", f"large-{number}", [budget], ALL, seconds=LONG)
        assert refused is not None
        assert (refused.used, refused.held) == (30, 0)
