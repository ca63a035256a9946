"""What a call may take is reserved before it is made, and settled when it is over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from aiforge.core.completions import Request, answer
from aiforge.core.line_bodies import CHAT
from aiforge.core.pricing import highest_price
from aiforge.core.providers import create_model
from aiforge.core.settings import AIForgeSettings
from aiforge.core.tokens import MOST_TOKENS
from aiforge.core.types import ProviderCall, Usage
from aiforge.testing import FakeProvider
from tests.aiforge.chat.support import ListRecorder
from tests.support.runners import library
from tests.support.servers import RedisServer
from tests.support.turns import Connect, claim, submit
from worker.calls.purse import BudgetExceededError, Purse, Purses, UnpricedModelError
from worker.contract.calls.budget_limits import limit
from worker.contract.calls.budgets import Budget, BudgetStore, Rules
from worker.contract.client import TurnClient
from worker.contract.schemas import ConversationSettings
from worker.running import recorders
from worker.running.specs import Specs

pytestmark = pytest.mark.anyio

MAX = {"max_usd": Decimal("0.001")}


async def purses(connect: Connect, **budgets: dict[str, Decimal]) -> tuple[TurnClient, Purses]:
    client = await connect(budgets=budgets)
    return client, Purses(client.connection, client.settings, AIForgeSettings.load())


def call(number: int, *, model: str = "gpt-4o-mini", **ended: Any) -> ProviderCall:
    return ProviderCall(
        call_id=f"call-{number}", purpose="answer", provider="openai", model=model,
        **{"outcome": "intended", **ended},
    )  # fmt: skip


def most(tokens: int) -> Callable[[], Usage]:
    return lambda: Usage(tokens, 0)


async def test_where_no_budget_holds_there_is_no_purse(connect: Connect) -> None:
    _, found = await purses(connect, batch=MAX)
    assert found.of_turn("t", "c") is None
    assert found.of_batch("t", "b") is not None


async def test_a_call_that_has_no_room_is_refused_by_name(connect: Connect) -> None:
    client, found = await purses(connect, conversation=MAX)
    purse = found.of_turn("t", "c")
    assert purse is not None
    await purse.reserve(call(1), most(5_000))
    with pytest.raises(BudgetExceededError, match=r"conversation c is 0\.001.*0\.00075.* reserved"):
        await purse.reserve(call(2), most(5_000))
    purse.settle(call(1, outcome="ok", usage=Usage(100, 0), cost=Decimal("0.000015")))
    await found.settled()
    await purse.reserve(call(3), most(5_000))
    purse.settle(call(3, outcome="error", usage=Usage(), cost=Decimal(0)))
    await found.settled()
    budget = Budget("conversation:c", limit("max_usd", Decimal(1)))
    assert await BudgetStore(client.connection, client.settings).used("t", budget) == 15_000_000


async def test_a_call_that_is_over_stands_in_no_way(connect: Connect) -> None:
    """Whoever is asked at once after another's failure, as a fallback is, needs that one's room."""
    _, found = await purses(connect, conversation=MAX)
    purse = found.of_turn("t", "c")
    assert purse is not None
    for number in range(3):
        await purse.reserve(call(number), most(5_000))
        purse.settle(call(number, outcome="error", usage=Usage(), cost=Decimal(0)))


async def test_a_batch_has_a_limit_of_its_own(connect: Connect) -> None:
    _, found = await purses(connect)
    purse = found.of_batch("t", "b", [limit("max_usd", Decimal("0.0001"))])
    assert purse is not None
    with pytest.raises(BudgetExceededError, match="max_usd of the batch b"):
        await purse.reserve(call(1), most(5_000))


async def test_what_calls_under_way_cannot_make_room_for_is_refused_at_once(connect: Connect) -> None:
    client, found = await purses(connect, tenant={"usd_per_day": Decimal("0.001")})
    purse = Purse(found, "t", Rules(client.settings).of("t", batch_id="b"), pauses=[60.0])
    async with asyncio.timeout(20):
        with pytest.raises(BudgetExceededError):
            await purse.reserve(call(1), most(10**6))


async def test_money_cannot_hold_a_model_without_a_price(connect: Connect) -> None:
    _, found = await purses(connect, tenant={"usd_per_day": Decimal(1)})
    purse = found.of_turn("t", "c")
    assert purse is not None
    with pytest.raises(UnpricedModelError, match="unheard-of"):
        await purse.reserve(call(1, model="unheard-of"), most(1))


async def test_another_providers_model_of_the_same_name_is_held_at_its_own_price(connect: Connect) -> None:
    client = await connect(budgets={"tenant": {"max_usd": Decimal("0.001")}})
    free = AIForgeSettings.load(MODELS={"gpt-4o": {"input": 0, "output": 0}}, PROVIDER="ollama")
    purse = Purses(client.connection, client.settings, free).of_turn("t", "c")
    assert purse is not None
    await purse.reserve(msgspec.structs.replace(call(1, model="gpt-4o"), provider="ollama"), most(10**6))
    with pytest.raises(BudgetExceededError):
        await purse.reserve(call(2, model="gpt-4o"), most(10**6))


async def test_tokens_can_hold_a_model_without_a_price(connect: Connect) -> None:
    _, found = await purses(connect, tenant={"max_tokens": Decimal(10)})
    purse = found.of_turn("t", "c")
    assert purse is not None
    await purse.reserve(call(1, model="unheard-of"), most(10))
    purse.settle(call(1, model="unheard-of", outcome="ok", usage=Usage(3, 4), cost=None))
    await found.settled()
    with pytest.raises(
        BudgetExceededError, match="max_tokens of the tenant is 10: 7 used, and a call may take "
    ):
        await purse.reserve(call(2, model="unheard-of"), most(4))


async def test_a_conversations_budget_goes_with_it(connect: Connect, server: RedisServer) -> None:
    """From its last turn's end on, which may come as long after a call as a question waits."""
    client, found = await purses(connect, conversation=MAX)
    await client.create_conversation(ConversationSettings(ttl=60), conversation_id="c")
    place = await submit(client, conversation_id="c")
    running = await claim(client.turns, place)
    specs = Specs(AIForgeSettings.load(), purses=found)
    recorder = recorders.of_turn(client.turns, place, running.claim.token, specs)
    recorder.begin(running.claim)
    recorder.next_call_id()
    await recorder.intend(call(1), lambda: Usage(5, 0))
    recorder.settle(call(1, outcome="ok", usage=Usage(5, 0), cost=Decimal("0.00001")))
    await found.settled()
    await running.answer("Hi")
    (name,) = server.ask("KEYS", "*:budget:conversation:c")
    assert 60_000 < server.ask("PTTL", name) <= (60 + client.settings.action_timeout_seconds) * 1000


class Noting(ListRecorder):
    """Asks what each call can take at most."""

    def __init__(self) -> None:
        super().__init__()
        self.most: list[Usage] = []

    async def intend(self, call: ProviderCall, most: Callable[[], Usage]) -> None:
        await super().intend(call, most)
        self.most.append(most())


@pytest.mark.parametrize(("asked", "longest"), [(5, 5), (10**30, MOST_TOKENS)])
async def test_what_a_line_asks_for_beyond_any_answer_has_a_price_all_the_same(
    provider: FakeProvider, asked: int, longest: int
) -> None:
    """The provider says what is wrong with it, and not a calculation that has no such numbers."""
    body = {"model": "gpt-5.4", "max_tokens": asked, "messages": [{"role": "user", "content": "Hi"}]}
    model, noting = create_model(library(provider)), Noting()
    request = Request(CHAT, json.dumps(body).encode(), model, "openai", "gpt-5.4", 0, 20.0, {})
    assert (await answer(request, noting)).status == 200
    (most,) = noting.most
    assert most.output_tokens == longest
    assert highest_price("openai", "gpt-5.4", most) is not None
