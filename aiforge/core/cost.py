"""What an agent has spent in its session: exact inside, floats for display outside."""

from __future__ import annotations

import threading
from decimal import Decimal

import msgspec

from aiforge.core.types import ProviderCall, Purpose, Usage


class Spending(msgspec.Struct, frozen=True):
    """The sum of some provider calls. `cost` is USD and lacks the unpriced calls."""

    cost: Decimal = Decimal(0)
    usage: Usage = Usage()
    """All tokens; cached, cache-write and reasoning tokens are told apart in it."""
    calls: int = 0
    failed_calls: int = 0
    """Calls that ended in an error or were given up; they cost what they used."""
    unpriced_calls: int = 0
    """Calls that used tokens of a model without a known price."""

    def plus(self, call: ProviderCall) -> Spending:
        return Spending(
            self.cost + (call.cost or 0),
            self.usage + (call.usage or Usage()),
            self.calls + 1,
            self.failed_calls + (call.outcome != "ok"),
            self.unpriced_calls + (call.cost is None and call.usage is not None),
        )


class CostTracker:
    """Adds up settled provider calls, those of summaries, retries and failed turns included.

    Calls may be added from several threads.
    """

    def __init__(self) -> None:
        self._adding = threading.Lock()
        self._all = Spending()
        self._models: dict[str, Spending] = {}
        self._purposes: dict[Purpose, Spending] = {}

    def add(self, call: ProviderCall) -> None:
        """Count one call, after it is settled."""
        with self._adding:
            self._all = self._all.plus(call)
            self._models[call.model] = self._models.get(call.model, Spending()).plus(call)
            self._purposes[call.purpose] = self._purposes.get(call.purpose, Spending()).plus(call)

    @property
    def total(self) -> Decimal:
        """USD, exact."""
        return self._all.cost

    @property
    def session_total(self) -> float:
        """USD, for display."""
        return float(self._all.cost)

    @property
    def by_model(self) -> dict[str, float]:
        """USD by model, for display."""
        return {model: float(spending.cost) for model, spending in self.models.items()}

    @property
    def models(self) -> dict[str, Spending]:
        """What was spent on each model."""
        with self._adding:
            return dict(self._models)

    @property
    def purposes(self) -> dict[Purpose, Spending]:
        """What was spent on answers, on rounds that asked for tools, and on summaries."""
        with self._adding:
            return dict(self._purposes)

    @property
    def usage(self) -> Usage:
        return self._all.usage

    @property
    def calls(self) -> int:
        return self._all.calls

    @property
    def failed_calls(self) -> int:
        """Calls that ended in an error or were given up."""
        return self._all.failed_calls

    @property
    def unpriced_calls(self) -> int:
        """Calls that used tokens of a model without a known price; the total lacks them."""
        return self._all.unpriced_calls

    def __repr__(self) -> str:
        return f"CostTracker(${self.total:f}, {self.calls} calls, {self.unpriced_calls} unpriced)"
