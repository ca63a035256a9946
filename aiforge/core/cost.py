"""What an agent has spent in its session: exact inside, floats for display outside."""

from __future__ import annotations

from decimal import Decimal

from aiforge.core.types import ProviderCall, Usage


class CostTracker:
    """Adds up settled provider calls, those of summaries, retries and failures included."""

    def __init__(self) -> None:
        self._by_model: dict[str, Decimal] = {}
        self.calls = 0
        self.unpriced_calls = 0
        """Calls that used tokens of a model without a known price; the total lacks them."""
        self.usage = Usage()

    def add(self, call: ProviderCall) -> None:
        """Count one call, after it is settled."""
        self.calls += 1
        self.usage += call.usage or Usage()
        if call.cost is not None:
            self._by_model[call.model] = self._by_model.get(call.model, Decimal(0)) + call.cost
        elif call.usage is not None:
            self.unpriced_calls += 1

    @property
    def total(self) -> Decimal:
        """USD, exact."""
        return sum(self._by_model.values(), Decimal(0))

    @property
    def session_total(self) -> float:
        """USD, for display."""
        return float(self.total)

    @property
    def by_model(self) -> dict[str, float]:
        """USD by model, for display."""
        return {model: float(cost) for model, cost in self._by_model.items()}

    def __repr__(self) -> str:
        return f"CostTracker(${self.total:f}, {self.calls} calls, {self.unpriced_calls} unpriced)"
