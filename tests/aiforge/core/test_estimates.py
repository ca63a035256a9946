"""A forecast: counted without asking anybody, exact in money, honest about what it does not know."""

from __future__ import annotations

from decimal import Decimal

from aiforge.core.estimates import LONG_ANSWER, SHORT_ANSWER, Estimator
from aiforge.core.pricing import Price

OWN = {"openai/mine": Price(input=Decimal(1), output=Decimal(2))}


def question(text: str = "x" * 400) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_nothing_takes_nothing() -> None:
    total = Estimator("openai").total()
    assert (total.lines, total.input_tokens) == (0, 0)
    assert (total.usd_low, total.usd_high) == (Decimal(0), Decimal(0))


def test_lines_add_up() -> None:
    estimator = Estimator("openai", prices=OWN)
    for _ in range(100):
        estimator.add(question(), model="mine")
    total = estimator.total()
    assert (total.lines, total.input_tokens) == (100, 100 * 104)
    assert (total.output_tokens_low, total.output_tokens_high) == (100 * SHORT_ANSWER, 100 * LONG_ANSWER)
    assert total.usd_low == Decimal("0.0104") + Decimal(2) * 100 * SHORT_ANSWER / 1_000_000
    assert total.usd_high == Decimal("0.0104") + Decimal(2) * 100 * LONG_ANSWER / 1_000_000
    assert total.unpriced == []


def test_a_cap_bounds_the_answers() -> None:
    estimator = Estimator("openai")
    estimator.add(question(), model="gpt-4o-mini", max_tokens=20)
    estimator.add(question(), model="gpt-4o-mini", max_tokens=5_000)
    total = estimator.total()
    assert (total.output_tokens_low, total.output_tokens_high) == (20 + SHORT_ANSWER, 5_020)


def test_a_model_without_a_price_is_named_and_not_free() -> None:
    estimator = Estimator("openai", prices=OWN)
    estimator.add(question(), model="unheard-of")
    assert (estimator.total().usd_low, estimator.total().unpriced) == (None, ["unheard-of"])
    estimator.add(question(), model="mine")
    assert estimator.total().usd_low is not None
    assert estimator.total().unpriced == ["unheard-of"]


def test_time_at_the_limits() -> None:
    estimator = Estimator("openai", prices=OWN)
    for _ in range(600):
        estimator.add(question(), model="mine")
    assert estimator.total().seconds is None
    assert estimator.total(requests_per_minute=300).seconds == 120
    tokens = 600 * (104 + SHORT_ANSWER)
    assert estimator.total(requests_per_minute=300, tokens_per_minute=tokens / 5).seconds == 300
