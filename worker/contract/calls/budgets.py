"""Budgets: how many requests, tokens and USD a tenant, an API key, a conversation or a batch may take.

Before a provider call the most that it can take is reserved in every budget that holds for it; afterwards
what it really took stands there instead. So calls under way at the same time cannot overspend together, and
what a dead worker had reserved comes back by itself. All budgets of a tenant have one hash tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

import msgspec

from aiforge.core.types import ProviderCall
from worker.contract import records
from worker.contract.calls.budget_limits import Limit, Measure, limits, tightest
from worker.contract.errors import LimitExceeded
from worker.contract.keys import Keys
from worker.contract.server.connection import Connection
from worker.contract.server.link import Argument
from worker.contract.settings import ContractSettings

CONVERSATION: Final = "conversation:"
"""Begins the scope of a conversation's budgets."""
FOREVER_SECONDS: Final = 34_560_000


class Budget(msgspec.Struct, frozen=True):
    """A limit of one owner: `tenant`, `key:<name>`, `conversation:<id>` or `batch:<id>`."""

    scope: str
    limit: Limit


class Rules:
    """The budgets that hold for whom, as the settings say."""

    def __init__(self, settings: ContractSettings) -> None:
        self._limits = {owner: limits(written) for owner, written in settings.budgets.items()}

    @property
    def of_conversations(self) -> bool:
        """Whether conversations have budgets of their own."""
        return bool(self._of("conversation"))

    def of(
        self,
        tenant: str,
        *,
        api_key: str | None = None,
        conversation_id: str | None = None,
        batch_id: str | None = None,
        batch_limits: Sequence[Limit] = (),
    ) -> list[Budget]:
        """Every budget that holds for a provider call; limits of one tenant or key replace those of all."""
        scopes = (
            ("tenant", self._own("tenant", tenant)),
            (api_key and f"key:{api_key}", self._own("key", api_key)),
            (conversation_id and f"{CONVERSATION}{conversation_id}", self._of("conversation")),
            (batch_id and f"batch:{batch_id}", [*self._of("batch"), *batch_limits]),
        )
        return [Budget(scope, limit) for scope, found in scopes if scope for limit in tightest(found)]

    def _own(self, kind: str, name: str | None) -> list[Limit]:
        return self._limits.get(f"{kind}:{name}", self._of(kind))

    def _of(self, owner: str) -> list[Limit]:
        return self._limits.get(owner, [])


class Need(msgspec.Struct, frozen=True):
    """The most that a call can take."""

    tokens: int
    usd: Decimal | None
    """None where no price is known: a budget of USD cannot hold it."""

    def of(self, measure: Measure) -> int:
        match measure:
            case "requests":
                return 1
            case "tokens":
                return self.tokens
            case "usd":
                return records.units(self.usd)


class Exceeded(msgspec.Struct, frozen=True):
    """The budget that has no room. `retry_after` is in seconds, None where waiting does not help."""

    budget: Budget
    used: int
    held: int
    retry_after: float | None
    need: int = 0

    @property
    def again_in(self) -> float | None:
        """In how many seconds there may be room; 0 when calls under way have to end first, None for never."""
        if self.need > self.budget.limit.amount:
            return None
        return 0.0 if self.used + self.need <= self.budget.limit.amount else self.retry_after

    def __str__(self) -> str:
        limit = self.budget.limit
        owner = self.budget.scope.replace(":", " ", 1)
        held = f" and {limit.shown(self.held)} reserved by calls under way" if self.held else ""
        used = f"{limit.shown(self.used)} used{held}"
        need = f", and a call may take {limit.shown(self.need)}" if limit.measure != "requests" else ""
        return f"{limit.name} of the {owner} is {limit.shown(limit.amount)}: {used}{need}"


class BudgetStore:
    """Typed access to budgets; safe to share within one event loop."""

    def __init__(self, connection: Connection, settings: ContractSettings) -> None:
        self._connection = connection
        self._keys = Keys(settings.namespace)

    async def reserve(
        self,
        tenant: str,
        call_id: str,
        budgets: Sequence[Budget],
        need: Need,
        *,
        seconds: float,
        lost: Need | None = None,
        lives: float | None = None,
    ) -> Exceeded | None:
        """Reserve for a call that takes at most `seconds`; None when every budget has room.

        `lost` is what counts when nobody can tell what the call took: all of `need` when left out.
        What a conversation has used is remembered until its window ends, and for as many seconds as it
        `lives` on from its last call; None is for ever, which here are 400 days.
        """
        arguments: list[Argument] = [call_id, int(seconds * 1000), self._keys.budget(tenant, "")]
        owner_ms = int((FOREVER_SECONDS if lives is None else lives) * 1000)
        for budget in budgets:
            limit = budget.limit
            arguments += [
                budget.scope, limit.measure, limit.seconds, limit.amount, need.of(limit.measure),
                (lost or need).of(limit.measure),
                owner_ms if budget.scope.startswith(CONVERSATION) else "",
            ]  # fmt: skip
        answer, *why = await self._connection.run("budget_reserve", self._of(tenant), arguments)
        if answer == b"reserved":
            return None
        number, used, held, left_ms = (int(value) for value in why)
        retry_after = left_ms / 1000 if left_ms else None
        exceeded = budgets[number]
        return Exceeded(exceeded, used, held, retry_after, need.of(exceeded.limit.measure))

    async def settle(self, tenant: str, calls: Sequence[ProviderCall]) -> None:
        """Write down what calls really took, failed ones too; lost ones count with no less than was noted
        when they were reserved, and with no more than was reserved then."""
        arguments: list[Argument] = [self._keys.budget(tenant, "")]
        for call in calls:
            usage = call.usage
            tokens = usage.input_tokens + usage.output_tokens if usage else 0
            arguments += [call.call_id, int(call.outcome == "lost"), tokens, records.units(call.cost)]
        await self._connection.run("budget_settle", self._of(tenant), arguments)

    async def keep(self, tenant: str, conversation_id: str, until: float) -> None:
        """Remember what a conversation has used until a turn of it has ended that comes at `until`, which is
        in Unix seconds."""
        name = self._keys.budget(tenant, f"{CONVERSATION}{conversation_id}")
        await self._connection.run("budget_keep", [name], [int(until * 1000)])

    async def forget(self, tenant: str, scope: str) -> None:
        """Erase what an owner has used; its calls under way bring nothing of it back."""
        arguments = [scope, self._keys.budget(tenant, "")]
        await self._connection.run("budget_forget", self._of(tenant), arguments)

    async def check(self, tenant: str, budgets: Sequence[Budget]) -> None:
        """Raises LimitExceeded when nothing more can be taken of one of these budgets now."""
        now, amounts = await self._standing(tenant, budgets)
        for budget, used in zip(budgets, amounts, strict=True):
            if used >= budget.limit.amount:
                seconds = budget.limit.seconds
                left = seconds - now % seconds if seconds else None
                raise LimitExceeded(
                    str(Exceeded(budget, used, 0, left)),
                    retry_after=left,
                    money=budget.limit.measure == "usd",
                )

    async def used(self, tenant: str, budget: Budget) -> int:
        """What stands in a budget's present window without what is held for calls under way."""
        _, (used,) = await self._standing(tenant, [budget])
        return used

    async def _standing(self, tenant: str, budgets: Sequence[Budget]) -> tuple[int, list[int]]:
        """Redis's time in Unix seconds, and what stands in each budget's present window then."""
        commands: list[Sequence[Argument]] = [("TIME",)]
        for budget in budgets:
            field = f"{budget.limit.measure}:{budget.limit.seconds}"
            name = self._keys.budget(tenant, budget.scope)
            commands.append(("HMGET", name, f"{field}:used", f"{field}:window"))
        (seconds, _), *known = await self._connection.commands(commands)
        now = int(seconds)
        windows = [now // budget.limit.seconds if budget.limit.seconds else 0 for budget in budgets]
        amounts = [
            int(used) if used is not None and int(written) == window else 0
            for (used, written), window in zip(known, windows, strict=True)
        ]
        return now, amounts

    def _of(self, tenant: str) -> list[str]:
        return [self._keys.reserved(tenant), self._keys.until(tenant)]
