"""Budgets: what is reserved, what was used, and that both together never exceed what is allowed."""

from __future__ import annotations

import asyncio
import time
from decimal import Decimal

import pytest

from aiforge.core.types import ConfigError, Outcome, ProviderCall, Usage
from tests.support.servers import RedisServer
from tests.support.turns import Connect
from tests.support.waiting import eventually
from worker.contract import records
from worker.contract.calls.budget_limits import Limit, limit, limits
from worker.contract.calls.budgets import Budget, BudgetStore, Exceeded, Need, Rules
from worker.contract.client import TurnClient
from worker.contract.errors import LimitExceeded
from worker.contract.schemas import Caller, ConversationSettings, TurnRequest
from worker.contract.settings import ContractSettings

pytestmark = pytest.mark.anyio

CAP = Budget("batch:b", limit("max_usd", Decimal("0.10")))
WORST = Need(tokens=1_000, usd=Decimal("0.0133"))
LONG = 600.0


@pytest.fixture
def budgets(client: TurnClient) -> BudgetStore:
    return BudgetStore(client.connection, client.settings)


def ended(call_id: str, cost: str | None, outcome: Outcome = "ok", tokens: int = 10) -> ProviderCall:
    return ProviderCall(
        call_id=call_id, purpose="answer", provider="openai", model="m", outcome=outcome,
        usage=Usage(tokens, 0), cost=None if cost is None else Decimal(cost),
    )  # fmt: skip


async def units(budgets: BudgetStore, budget: Budget = CAP) -> Decimal:
    return Decimal(await budgets.used("t", budget)).scaleb(-12)


async def test_parallel_calls_cannot_overspend_together(budgets: BudgetStore) -> None:
    asked = [budgets.reserve("t", f"call-{number}", [CAP], WORST, seconds=LONG) for number in range(16)]
    refused = [why for why in await asyncio.gather(*asked) if why is not None]
    assert len(refused) == 9
    assert {(why.budget, why.used, why.retry_after) for why in refused} == {(CAP, 0, None)}
    await budgets.settle("t", [ended(f"call-{number}", "0.0133") for number in range(16)])
    assert await units(budgets) == 7 * Decimal("0.0133")


async def test_a_refusal_says_whether_waiting_helps(budgets: BudgetStore) -> None:
    """Calls under way may leave room, a window ends, and what is used of a limit without end is used."""
    hourly, ever = Budget("b", Limit("tokens", 3_600, 10)), Budget("b", Limit("tokens", 0, 10))

    async def again_in(call_id: str, budget: Budget, tokens: int) -> float | None:
        why = await budgets.reserve("t", call_id, [budget], Need(tokens, None), seconds=LONG)
        assert why is not None
        return why.again_in

    for budget in (hourly, ever):
        assert await again_in("large", budget, 11) is None
        call_id = f"first of {budget.limit.seconds}"
        assert await budgets.reserve("t", call_id, [budget], Need(8, None), seconds=LONG) is None
        assert await again_in("second", budget, 8) == 0
        await budgets.settle("t", [ended(call_id, None, tokens=8)])
    assert await again_in("third", ever, 8) is None
    left = await again_in("third", hourly, 8)
    assert left is not None
    assert 0 < left <= 3_600


async def test_what_was_reserved_gives_way_to_what_it_took(budgets: BudgetStore) -> None:
    for number in range(30):
        assert await budgets.reserve("t", f"call-{number}", [CAP], WORST, seconds=LONG) is None
        await budgets.settle("t", [ended(f"call-{number}", "0.001")])
    assert await units(budgets) == Decimal("0.030")


async def test_repetitions_change_nothing(budgets: BudgetStore) -> None:
    for _ in range(20):
        assert await budgets.reserve("t", "call", [CAP], WORST, seconds=LONG) is None
    for _ in range(20):
        await budgets.settle("t", [ended("call", "0.002")])
    assert await units(budgets) == Decimal("0.002")
    rest = Need(tokens=1, usd=Decimal("0.098"))
    assert await budgets.reserve("t", "rest", [CAP], rest, seconds=LONG) is None
    assert await budgets.reserve("t", "more", [CAP], Need(1, Decimal("1e-12")), seconds=LONG) is not None
    await budgets.settle("t", [ended("rest", "0")])


async def test_all_budgets_or_none(budgets: BudgetStore) -> None:
    one, other = (Budget(scope, Limit("requests", 0, 1)) for scope in ("conversation:c", "tenant"))
    assert await budgets.reserve("t", "first", [other], WORST, seconds=LONG) is None
    why = await budgets.reserve("t", "second", [one, other], WORST, seconds=LONG)
    assert why == Exceeded(other, used=0, held=1, retry_after=None, need=1)
    assert await budgets.reserve("t", "third", [one], WORST, seconds=LONG) is None
    await budgets.settle("t", [ended("first", "0"), ended("third", "0")])


async def test_what_a_dead_worker_held_counts_as_spent_unless_somebody_knows(budgets: BudgetStore) -> None:
    half = Need(tokens=1, usd=Decimal("0.05"))
    for name in ("dead", "known"):
        assert await budgets.reserve("t", name, [CAP], half, seconds=0.05) is None
    await budgets.settle("t", [ended("known", "0.01", "aborted")])

    async def spent() -> bool:
        small = Need(tokens=1, usd=Decimal(0))
        assert await budgets.reserve("t", "next", [CAP], small, seconds=LONG) is None
        await budgets.settle("t", [ended("next", "0")])
        return await units(budgets) == Decimal("0.06")

    await eventually(spent)
    await budgets.settle("t", [ended("dead", "0.02")])
    assert await units(budgets) == Decimal("0.06")


async def test_a_lost_call_counts_as_what_was_said_before_it_was_made(budgets: BudgetStore) -> None:
    """Nobody is left who could tell what it took: an estimate afterwards knows less than who asked."""
    usual = Need(tokens=100, usd=Decimal("0.002"))
    assert await budgets.reserve("t", "bounded", [CAP], WORST, seconds=LONG) is None
    assert await budgets.reserve("t", "unbounded", [CAP], WORST, lost=usual, seconds=LONG) is None
    for _ in range(2):
        await budgets.settle("t", [ended(name, "0.001", "lost") for name in ("bounded", "unbounded")])
    assert await units(budgets) == Decimal("0.0133") + Decimal("0.002")


async def test_a_lost_call_counts_with_what_was_seen_of_it_where_that_is_more(budgets: BudgetStore) -> None:
    usual = Need(tokens=100, usd=Decimal("0.002"))
    tokens = Budget("batch:b", limit("max_tokens", Decimal(10_000)))
    for name, seen in (("short", 99), ("long", 5_000)):
        held = [CAP, tokens]
        assert await budgets.reserve("t", name, held, WORST, lost=usual, seconds=LONG) is None
        cost = {"short": "0.001", "long": "0.003"}[name]
        for _ in range(2):
            await budgets.settle("t", [ended(name, cost, "lost", tokens=seen)])
    assert await units(budgets) == Decimal("0.005")
    assert await budgets.used("t", tokens) == 100 + WORST.tokens, "no more than it could take"


async def test_failed_calls_count_as_what_they_cost(budgets: BudgetStore) -> None:
    for outcome, cost in (("error", "0.004"), ("aborted", "0.005")):
        assert await budgets.reserve("t", outcome, [CAP], WORST, seconds=LONG) is None
        await budgets.settle("t", [ended(outcome, cost, outcome)])  # type: ignore[arg-type]
    assert await units(budgets) == Decimal("0.009")


async def test_a_window_begins_anew(budgets: BudgetStore) -> None:
    second = Budget("tenant", Limit("requests", 1, 2))
    refused = None
    for number in range(3):
        refused = await budgets.reserve("t", f"call-{number}", [second], WORST, seconds=LONG)
        await budgets.settle("t", [ended(f"call-{number}", "0")])
    if refused is not None:
        assert refused.retry_after is not None
        assert 0 < refused.retry_after <= 1

    async def room() -> bool:
        return await budgets.reserve("t", "later", [second], WORST, seconds=LONG) is None

    await eventually(room)
    await budgets.settle("t", [ended("later", "0")])


async def test_tokens_and_requests_are_counted(budgets: BudgetStore) -> None:
    tokens, requests = (
        Budget("tenant", limit(name, Decimal(100))) for name in ("max_tokens", "max_requests")
    )
    assert await budgets.reserve("t", "call", [tokens, requests], Need(80, None), seconds=LONG) is None
    await budgets.settle("t", [ended("call", None, tokens=33)])
    assert (await budgets.used("t", tokens), await budgets.used("t", requests)) == (33, 1)


async def test_tenants_have_budgets_of_their_own(budgets: BudgetStore, server: RedisServer) -> None:
    whole = Need(tokens=1, usd=Decimal("0.10"))
    for tenant in ("a", "b"):
        assert await budgets.reserve(tenant, "call", [CAP], whole, seconds=LONG) is None
        await budgets.settle(tenant, [ended("call", "0")])


@pytest.mark.parametrize(
    ("name", "amount", "expected"),
    [
        ("usd_per_day", "2.5", Limit("usd", 86_400, 2_500_000_000_000)),
        ("tokens_per_hour", "1000", Limit("tokens", 3_600, 1_000)),
        ("requests_per_minute", "0", Limit("requests", 60, 0)),
        ("max_usd", "0.000000000001", Limit("usd", 0, 1)),
    ],
)
def test_limits_by_name(name: str, amount: str, expected: Limit) -> None:
    (found,) = limits({name: Decimal(amount)})
    assert (found, found.name) == (expected, name)


def test_which_budgets_hold_for_whom() -> None:
    written = {
        "tenant": {"requests_per_minute": Decimal(9)},
        "tenant:acme": {"usd_per_day": Decimal(5)},
        "conversation": {"max_usd": Decimal(1)},
    }
    rules = Rules(ContractSettings(budgets=written))
    assert [one.limit.name for one in rules.of("other")] == ["requests_per_minute"]
    assert [one.limit.name for one in rules.of("acme")] == ["usd_per_day"]
    found = rules.of("acme", conversation_id="c", batch_id="b", batch_limits=[CAP.limit])
    assert [(one.scope, one.limit.name) for one in found] == [
        ("tenant", "usd_per_day"),
        ("conversation:c", "max_usd"),
        ("batch:b", "max_usd"),
    ]


def test_the_same_limit_twice_is_the_lower_one() -> None:
    """A batch's own limit beside that of all batches: both are one sum, which would count twice."""
    rules = Rules(ContractSettings(budgets={"batch": {"max_usd": Decimal(1), "max_tokens": Decimal(9)}}))
    for own, expected in (("0.5", "0.5"), ("2", "1")):
        found = rules.of("t", batch_id="b", batch_limits=[limit("max_usd", Decimal(own))])
        assert [one.limit for one in found] == [
            limit("max_usd", Decimal(expected)), limit("max_tokens", Decimal(9)),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"tenants": {}}, "tenants: budgets are written for"),
        ({"tenant:{x}": {}}, "budgets are written for"),
        ({"tenant": {"usd_a_day": 1}}, "tenant: usd_a_day: no such limit"),
    ],
)
def test_wrong_settings_are_named(written: dict[str, dict[str, Decimal]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ContractSettings.load(budgets=written)


@pytest.mark.parametrize(
    ("name", "amount", "message"),
    [
        ("usd_per_week", "1", "usd_per_week: no such limit"),
        ("max_usd", "-1", "max_usd: must be from 0"),
        ("max_usd", "NaN", "max_usd: must be from 0"),
        ("max_usd", "9000001", "max_usd: must be from 0 to 9000000"),
        ("max_usd", "1e-13", "finer than 10"),
        ("max_tokens", "1.5", "finer than one"),
    ],
)
def test_a_wrong_limit_is_named(name: str, amount: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        limit(name, Decimal(amount))


OF_ALL = Budget("tenant", limit("tokens_per_day", Decimal(5_000)))
OF_ONE = Budget("conversation:c", limit("tokens_per_day", Decimal(5_000)))


async def test_an_erased_conversation_leaves_no_budget(
    budgets: BudgetStore, client: TurnClient, server: RedisServer
) -> None:
    await client.of(Caller("t")).create_conversation(ConversationSettings(), conversation_id="c")
    await budgets.reserve("t", "ended", [OF_ALL, OF_ONE], WORST, seconds=LONG)
    await budgets.settle("t", [ended("ended", None)])
    await budgets.reserve("t", "under way", [OF_ALL, OF_ONE], WORST, seconds=LONG)
    await client.of(Caller("t")).erase("c")
    await budgets.settle("t", [ended("under way", None)])
    assert (await budgets.used("t", OF_ALL), await budgets.used("t", OF_ONE)) == (20, 0)
    assert server.ask("KEYS", "*budget:conversation*") == []


async def test_a_full_budget_refuses_new_turns_and_no_repetition(connect: Connect) -> None:
    client = await connect(budgets={"conversation": {"max_requests": Decimal(1)}})
    budgets, request = BudgetStore(client.connection, client.settings), TurnRequest(message="Hi")
    budget = Budget("conversation:c", limit("max_requests", Decimal(1)))
    posted = await client.submit(request, conversation_id="c", idempotency_key="k")
    await budgets.reserve("default", "call", [budget], WORST, seconds=LONG)
    await budgets.settle("default", [ended("call", None)])
    for key in ("another", None):
        with pytest.raises(LimitExceeded):
            await client.submit(request, conversation_id="c", idempotency_key=key)
    again = await client.submit(request, conversation_id="c", idempotency_key="k")
    assert (again.turn_id, again.replayed) == (posted.turn_id, True)


async def test_a_conversations_budget_lives_no_longer_than_the_conversation(
    budgets: BudgetStore, server: RedisServer
) -> None:
    """Or than its window, which ends whatever becomes of the conversation."""
    day = Budget("conversation:d", limit("usd_per_day", Decimal(1)))
    total = Budget("conversation:c", limit("max_usd", Decimal(1)))
    for budget in (total, day, CAP):
        assert await budgets.reserve("t", budget.scope, [budget], WORST, seconds=LONG, lives=60.0) is None
        await budgets.settle("t", [ended(budget.scope, "0.01")])
    assert 50 < left_of(server, total) <= 60
    assert 0 < left_of(server, day) <= 86_400
    assert 399 * 86_400 < left_of(server, CAP) <= 400 * 86_400
    await budgets.keep("t", "c", time.time() + 3_600)
    assert 3_600 < left_of(server, total) <= 3_661
    assert await budgets.used("t", total) == records.units(Decimal("0.01"))


async def test_what_a_scheduled_turn_will_need_is_remembered(connect: Connect, server: RedisServer) -> None:
    client = await connect(budgets={"conversation": {"max_usd": Decimal(1)}})
    store = BudgetStore(client.connection, client.settings)
    budget = Budget("conversation:c", limit("max_usd", Decimal(1)))
    await store.reserve("t", "call", [budget], WORST, seconds=LONG, lives=60.0)
    await store.settle("t", [ended("call", "0.01")])
    request = TurnRequest(message="Hello?", run_after=time.time() + 3_600)
    await client.of(Caller("t")).submit(request, conversation_id="c")
    assert 3_600 < left_of(server, budget) <= 3_661


async def test_a_conversation_that_lives_for_ever_is_remembered_for_400_days(
    budgets: BudgetStore, server: RedisServer
) -> None:
    for lives in (60.0, None):
        await budgets.reserve("t", "call", [OF_ONE], WORST, seconds=LONG, lives=lives)
        await budgets.settle("t", [ended("call", None)])
    assert left_of(server, OF_ONE) > 399 * 86_400


def left_of(server: RedisServer, budget: Budget) -> float:
    """Seconds for which what was used is remembered."""
    (name,) = server.ask("KEYS", f"*:budget:{budget.scope}")
    return float(server.ask("PTTL", name)) / 1000
