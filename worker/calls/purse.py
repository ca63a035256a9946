"""What a provider call may take of the budgets that hold for it: reserved before, settled after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from aiforge.core.pricing import price
from aiforge.core.router import own_prices
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import AIForgeError, ProviderCall, Usage
from worker.contract.calls.budget_limits import Limit
from worker.contract.calls.budgets import Budget, BudgetStore, Need, Rules
from worker.contract.server.connection import Connection
from worker.contract.settings import ContractSettings
from worker.patience import patiently

BEYOND_SECONDS: Final = 60.0
"""How long after the longest call what it had reserved counts as spent."""


class BudgetExceededError(AIForgeError):
    """A budget has no room for a provider call, so it is not made."""

    code = "budget_exceeded"


class UnpricedModelError(AIForgeError):
    """A budget in USD cannot hold a model whose price nobody knows."""

    code = "unpriced_model"


class Purses:
    """The purses of one process."""

    def __init__(self, connection: Connection, settings: ContractSettings, library: AIForgeSettings) -> None:
        self._store = BudgetStore(connection, settings)
        self._rules = Rules(settings)
        self.prices = own_prices(library)
        """Own prices by model."""
        self._seconds = library.TURN_TIMEOUT + BEYOND_SECONDS
        self._settling: set[asyncio.Task[None]] = set()

    def of_turn(self, tenant: str, conversation_id: str) -> Purse | None:
        """None where no budget holds."""
        return self._purse(tenant, self._rules.of(tenant, conversation_id=conversation_id))

    def of_batch(self, tenant: str, batch_id: str, limits: Sequence[Limit] = ()) -> Purse | None:
        """`limits` are the batch's own; None where no budget holds."""
        return self._purse(tenant, self._rules.of(tenant, batch_id=batch_id, batch_limits=limits))

    async def settled(self) -> None:
        """Returns when everything is written down."""
        await asyncio.gather(*self._settling)

    def _purse(self, tenant: str, budgets: list[Budget]) -> Purse | None:
        return Purse(self, tenant, budgets) if budgets else None

    async def reserve(self, tenant: str, budgets: list[Budget], call: ProviderCall, most: Usage) -> None:
        """Raises BudgetExceededError or UnpricedModelError."""
        usd = price(call.provider, call.model, most, self.prices)
        if usd is None and any(budget.limit.measure == "usd" for budget in budgets):
            raise UnpricedModelError(
                f"no price is known of {call.model!r}, so no budget in USD can hold it; AIFORGE_PRICES is for"
                " prices of your own"
            )
        need = Need(most.input_tokens + most.output_tokens, usd)
        exceeded = await patiently(
            lambda: self._store.reserve(tenant, call.call_id, budgets, need, seconds=self._seconds)
        )
        if exceeded is not None:
            raise BudgetExceededError(str(exceeded))

    async def charge(self, tenant: str, calls: Sequence[ProviderCall]) -> None:
        """Write down what somebody else's calls took that died with them."""
        if calls:
            await self._store.settle(tenant, calls)

    def settle(self, tenant: str, call: ProviderCall) -> None:
        """Write down what a call took, aside: if this process dies now, what was reserved counts as spent."""
        task = asyncio.create_task(patiently(lambda: self._store.settle(tenant, [call])))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)


class Purse:
    """The budgets that hold for the calls of one turn or batch."""

    def __init__(self, purses: Purses, tenant: str, budgets: list[Budget]) -> None:
        self._purses = purses
        self._tenant = tenant
        self._budgets = budgets

    async def reserve(self, call: ProviderCall, most: Callable[[], Usage]) -> None:
        """Before a call; `most` is what it can take. Raises BudgetExceededError or UnpricedModelError."""
        await self._purses.reserve(self._tenant, self._budgets, call, most())

    def settle(self, call: ProviderCall) -> None:
        """After a call, however it ended."""
        self._purses.settle(self._tenant, call)
