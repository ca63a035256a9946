"""The batches of a run, one by one."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from aiforge.client import Batch

WITHOUT_END: Final = Decimal("Infinity")


@dataclass(slots=True)
class Part:
    """One batch of the run, and how many of its rows are taken. `is_old` is one of an earlier command; what
    is not followed was over then, or is wanted by nobody."""

    number: int
    batch: Batch
    is_old: bool = False
    is_followed: bool = True
    next_row: int = 0

    @property
    def size(self) -> int:
        return self.batch.request_counts.total

    @property
    def has_news(self) -> bool:
        return self.next_row < self.size and (
            self.batch.ended or self.batch.request_counts.done > self.next_row
        )

    @property
    def most(self) -> Decimal:
        """USD that it has cost, or may yet cost."""
        if self.batch.ended:
            return self.batch.cost
        return WITHOUT_END if self.batch.max_cost is None else self.batch.max_cost
