"""What a provider call may take of the budgets that hold for it: reserved before, settled after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from aiforge.core.pricing import highest_price
from aiforge.core.router import own_prices
from aiforge.core.settings import AIForgeSettings
from aiforge.core.tokens import LONGEST_ANSWER, USUAL_ANSWER
from aiforge.core.types import AIForgeError, ProviderCall, Usage
from worker.contract.calls.budget_limits import Limit
from worker.contract.calls.budgets import Budget, BudgetStore, Need, Rules
from worker.contract.server.connection import Connection
from worker.contract.settings import ContractSettings
from worker.patience import patiently

BEYOND_SECONDS: Final = 60.0
"""How long after the longest call what it had reserved counts as spent."""
SETTLE_SECONDS: Final = 2.0
"""How long a process that ends waits for Redis to write that down; else what was reserved counts."""

PAUSES: Final = (0.05, 0.1, 0.2, 0.4)
"""Seconds between tries of an item, for calls under way to end whose reservations stand in its way."""


class BudgetExceededError(AIForgeError):
    """A budget has no room for a provider call, so it is not made."""

    code = "budget_exceeded"

    def __init__(self, message: str, *, again_in: float | None) -> None:
        """`again_in`: seconds until there may be room; 0 once calls under way have ended, None for never."""
        super().__init__(message)
        self.again_in = None if again_in is None else float(again_in)


class UnpricedModelError(AIForgeError):
    """A budget in USD cannot hold a model whose price nobody knows."""

    code = "unpriced_model"


class Purses:
    """The purses of one process."""

    def __init__(self, connection: Connection, settings: ContractSettings, library: AIForgeSettings) -> None:
        self._store = BudgetStore(connection, settings)
        self._rules = Rules(settings)
        self.prices = own_prices(library)
        """Own prices by `provider/model`."""
        self._seconds = library.TURN_TIMEOUT + BEYOND_SECONDS
        self._beyond_last = max(self._seconds, settings.action_timeout_seconds)
        """A conversation lives on from its last turn's end, which may be so long after a call."""
        self._settling: set[asyncio.Task[None]] = set()

    def of_turn(
        self, tenant: str, conversation_id: str, *, batch_id: str | None = None, api_key: str | None = None
    ) -> Purse | None:
        """Of a turn that is a batch's item its budgets hold, too; None where no budget holds."""
        found = self._rules.of(tenant, api_key=api_key, conversation_id=conversation_id, batch_id=batch_id)
        return self._purse(tenant, found)

    def of_batch(
        self, tenant: str, batch_id: str, limits: Sequence[Limit] = (), *, api_key: str | None = None
    ) -> Purse | None:
        """`limits` are the batch's own; None where no budget holds."""
        found = self._rules.of(tenant, api_key=api_key, batch_id=batch_id, batch_limits=limits)
        return self._purse(tenant, found, PAUSES)

    async def settled(self) -> None:
        """Returns when everything is written down, or Redis is away."""
        if self._settling:
            await asyncio.wait(self._settling, timeout=SETTLE_SECONDS)

    def _purse(self, tenant: str, budgets: list[Budget], pauses: Sequence[float] = ()) -> Purse | None:
        return Purse(self, tenant, budgets, pauses) if budgets else None

    async def reserve(
        self,
        tenant: str,
        budgets: list[Budget],
        call: ProviderCall,
        most: Usage,
        *,
        lives: float | None = None,
    ) -> None:
        """`lives` are the seconds that a conversation is kept, None for ever.

        Raises BudgetExceededError or UnpricedModelError.
        """
        usd = highest_price(call.provider, call.model, most, self.prices)
        if usd is None and any(budget.limit.measure == "usd" for budget in budgets):
            raise UnpricedModelError(
                f"no price is known of {call.model!r}, so no budget in USD can hold it; AIFORGE_MODELS is for"
                " prices of your own"
            )
        need = Need(most.input_tokens + most.output_tokens, usd)
        usual = _usual(most)
        lost = Need(
            usual.input_tokens + usual.output_tokens,
            highest_price(call.provider, call.model, usual, self.prices),
        )
        remembered = None if lives is None else lives + self._beyond_last
        exceeded = await patiently(
            lambda: self._store.reserve(
                tenant, call.call_id, budgets, need, lost=lost, seconds=self._seconds, lives=remembered
            )
        )
        if exceeded is not None:
            raise BudgetExceededError(str(exceeded), again_in=exceeded.again_in)

    async def charge(self, tenant: str, calls: Sequence[ProviderCall]) -> None:
        """Write down what somebody else's calls took that died with them."""
        if calls:
            await self._store.settle(tenant, calls)

    def settle(self, tenant: str, call: ProviderCall) -> asyncio.Task[None]:
        """Write down what a call took, aside: if this process dies now, what was reserved counts as spent."""
        task = asyncio.create_task(patiently(lambda: self._store.settle(tenant, [call])))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task


class Purse:
    """The budgets that hold for the calls of one turn or batch."""

    def __init__(
        self, purses: Purses, tenant: str, budgets: list[Budget], pauses: Sequence[float] = ()
    ) -> None:
        """`pauses`: how often and for how many seconds room is waited for that calls under way may leave."""
        self._purses = purses
        self._tenant = tenant
        self._budgets = budgets
        self._pauses = pauses
        self._settling: asyncio.Task[None] | None = None
        self.lives: float | None = None
        """Seconds that the turn's conversation is kept after its end; None is for ever."""

    async def reserve(self, call: ProviderCall, most: Callable[[], Usage]) -> None:
        """Before a call; `most` is what it can take. Raises BudgetExceededError or UnpricedModelError."""
        if self._settling is not None:
            # The call before this one holds no room any more.
            await asyncio.wait([self._settling])
        taken = most()
        for pause in self._pauses:
            try:
                await self._reserve(call, taken)
            except BudgetExceededError as error:
                if error.again_in != 0:
                    raise
                await asyncio.sleep(pause)
            else:
                return
        await self._reserve(call, taken)

    async def _reserve(self, call: ProviderCall, most: Usage) -> None:
        await self._purses.reserve(self._tenant, self._budgets, call, most, lives=self.lives)

    def settle(self, call: ProviderCall) -> None:
        """After a call, however it ended."""
        self._settling = self._purses.settle(self._tenant, call)


def _usual(most: Usage) -> Usage:
    """What counts of a call that died with its worker: where a limit bounds its answer, all it can take."""
    if most.output_tokens != LONGEST_ANSWER:
        return most
    return msgspec.structs.replace(most, output_tokens=USUAL_ANSWER)
