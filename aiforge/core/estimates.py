"""What a set of questions will take, before any of them is asked: tokens, USD and time, from low to high."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from aiforge.core.pricing import PRICE_LIST, Price, price
from aiforge.core.tokens import count_messages
from aiforge.core.types import Usage

SHORT_ANSWER: Final = 50
LONG_ANSWER: Final = 1_000
"""Tokens of an answer where nothing else is known; a cap below either takes its place."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast. Input tokens are counted by rule of thumb, answers are taken as short and as long.

    USD are None when no price is known of any model that is asked; `unpriced` names these models, and the
    sums leave their lines out. `seconds` is what the limits of requests and tokens a minute allow at best.
    """

    lines: int
    input_tokens: int
    output_tokens_low: int
    output_tokens_high: int
    usd_low: Decimal | None
    usd_high: Decimal | None
    unpriced: list[str]
    price_list: str
    seconds: float | None


class Estimator:
    """Adds up lines one by one; keeps none of them."""

    def __init__(self, provider: str, *, prices: Mapping[str, Price] | None = None) -> None:
        self._provider = provider
        self._prices = prices
        self._lines = 0
        self._input = self._low = self._high = 0
        self._usd_low = self._usd_high = Decimal(0)
        self._unpriced: set[str] = set()
        self._priced = False

    def add(
        self, messages: Sequence[Mapping[str, Any]], *, model: str, max_tokens: int | None = None
    ) -> None:
        """One line, as it will be sent."""
        sent = count_messages(messages)
        cap = LONG_ANSWER if max_tokens is None else max_tokens
        low = min(SHORT_ANSWER, cap)
        self._lines += 1
        self._input += sent
        self._low += low
        self._high += cap
        least, most = self._price(model, sent, low), self._price(model, sent, cap)
        if least is None or most is None:
            self._unpriced.add(model)
        else:
            self._priced = True
            self._usd_low += least
            self._usd_high += most

    def _price(self, model: str, sent: int, answered: int) -> Decimal | None:
        return price(self._provider, model, Usage(sent, answered), self._prices)

    def total(
        self, *, requests_per_minute: float | None = None, tokens_per_minute: float | None = None
    ) -> Estimate:
        """What was added so far."""
        minutes = [
            amount / limit
            for amount, limit in (
                (self._lines, requests_per_minute),
                (self._input + self._low, tokens_per_minute),
            )
            if limit
        ]
        known = self._priced or not self._lines
        return Estimate(
            lines=self._lines,
            input_tokens=self._input,
            output_tokens_low=self._low,
            output_tokens_high=self._high,
            usd_low=self._usd_low if known else None,
            usd_high=self._usd_high if known else None,
            unpriced=sorted(self._unpriced),
            price_list=PRICE_LIST,
            seconds=max(minutes) * 60 if minutes else None,
        )
