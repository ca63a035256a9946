"""Prices are exact, unknown is not zero, and our arithmetic is that of the price list."""

from __future__ import annotations

from decimal import Decimal

import genai_prices
import pytest
from genai_prices.data import providers
from hypothesis import given
from hypothesis import strategies as st

from aiforge.core.cost import CostTracker
from aiforge.core.pricing import Price, highest_price, price
from aiforge.core.types import COST_UNIT, ConfigError, ProviderCall, Usage

C1 = Usage(input_tokens=262_960, output_tokens=1_744, cached_tokens=257_955)
USAGE = Usage(input_tokens=1_000_000, output_tokens=1_000_000, cached_tokens=400_000)


def test_a_cached_prompt_to_the_last_digit() -> None:
    """C1"""
    own = Price(input=Decimal("1.25"), cached=Decimal("0.625"), output=Decimal(10))
    assert own.cost(C1) == Decimal("0.184918125")
    assert price("openai", "my-model", C1, {"openai/my-model": own}) == Decimal("0.184918125")


def test_list_prices() -> None:
    expected = Decimal("0.15") * 6 / 10 + Decimal("0.075") * 4 / 10 + Decimal("0.6")
    assert price("openai", "gpt-4o-mini", USAGE) == expected


@pytest.mark.parametrize(
    "name",
    [
        "gpt-4o-2024-08-06",
        "openai/gpt-4o",
        "openai/gpt-4o-2024-08-06",
        "gpt-4o-2099-01-01",
        "gpt-4o@20990101",
    ],
)
def test_a_snapshot_costs_what_its_base_costs(name: str) -> None:
    assert price("openai", name, USAGE) == price("openai", "gpt-4o", USAGE) != 0


def test_a_snapshot_with_a_price_of_its_own_keeps_it() -> None:
    listed = genai_prices.calc_price(
        genai_prices.Usage(input_tokens=10, output_tokens=10), "gpt-4o-2024-05-13", provider_id="openai"
    )
    assert price("openai", "gpt-4o-2024-05-13", Usage(10, 10)) == listed.total_price


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "llama-of-ours"),
        ("ollama", "llama3"),
        ("nobody", "gpt-4o"),
        ("openai", "ft:gpt-4o:us::1"),
        ("openai", ""),
    ],
)
def test_unknown_is_none(provider: str, model: str) -> None:
    assert price(provider, model, USAGE) is None


def test_an_explicit_zero_is_zero() -> None:
    """C6"""
    assert price("offline", "offline", USAGE) == 0
    assert price("openai", "ours", USAGE, {"openai/ours": Price(input=Decimal(0), output=Decimal(0))}) == 0
    assert price("openai", "gpt-4o", Usage()) == 0


def test_other_providers_have_prices() -> None:
    assert price("anthropic", "claude-sonnet-4-5", Usage(1000, 1000))
    assert price("google", "gemini-2.5-pro", Usage(1000, 1000))
    assert price("mistral", "mistral-large-latest", Usage(1000, 1000))
    assert price("bedrock", "anthropic.claude-3-5-sonnet-20240620-v1:0", Usage(1000, 1000))


def test_every_model_of_the_list_as_the_list_counts() -> None:
    """Steps by length, prices of a request beside those of its tokens, and whatever else there is."""
    usage = Usage(input_tokens=300_000, output_tokens=567, cached_tokens=89)
    counted = genai_prices.Usage(input_tokens=300_000, output_tokens=567, cache_read_tokens=89)
    compared = 0
    for provider in providers:
        for model in provider.models:
            try:
                listed = genai_prices.calc_price(counted, model.id, provider_id=provider.id)
            except (LookupError, ValueError):
                continue
            assert price(provider.id, model.id, usage) == listed.total_price.quantize(COST_UNIT), model.id
            compared += 1
    assert compared > 1_000


def test_audio_has_a_price_of_its_own() -> None:
    usage = Usage(input_tokens=1_000, output_tokens=100, input_audio_tokens=600, output_audio_tokens=50)
    counted = genai_prices.Usage(
        input_tokens=1_000, output_tokens=100, input_audio_tokens=600, output_audio_tokens=50
    )
    listed = genai_prices.calc_price(counted, "gpt-audio", provider_id="openai").total_price
    assert (
        price("openai", "gpt-audio", usage)
        == listed
        > 5 * (price("openai", "gpt-audio", Usage(1_000, 100)) or 0)
    )
    assert price("openai", "gpt-4o-mini", usage) == price("openai", "gpt-4o-mini", Usage(1_000, 100))


@pytest.mark.parametrize("written", [0, 1, 7_000, 7_001])
def test_a_list_price_that_is_finer_than_the_ledger_still_has_a_cost(written: int) -> None:
    """The list has prices such as 0.0833333333333333: a call must not fail after it was paid."""
    cost = price("openrouter", "google/gemini-2.5-flash", Usage(9_000, 10, 0, written))
    assert cost is not None
    assert cost > 0
    assert cost % COST_UNIT == 0


def test_what_is_written_to_a_cache_can_be_the_most() -> None:
    model = "claude-sonnet-4-5"
    written = price("anthropic", model, Usage(1_000, 10, 0, 1_000))
    assert written is not None
    assert (
        highest_price("anthropic", model, Usage(1_000, 10))
        == written
        > (price("anthropic", model, Usage(1_000, 10)) or 0)
    )
    assert highest_price("openai", "unheard-of", Usage(1_000, 10)) is None


def test_an_own_price_is_for_its_provider_alone() -> None:
    own = {"house/gpt-4o": Price(input=Decimal(0), output=Decimal(0))}
    assert price("house", "gpt-4o", USAGE, own) == 0
    assert price("openai", "gpt-4o", USAGE, own) == price("openai", "gpt-4o", USAGE) != 0


@pytest.mark.parametrize("wrong", ["-1", "nan", "inf", "-inf", "0.0000001"])
def test_prices_that_are_none(wrong: str) -> None:
    """C16"""
    with pytest.raises(ConfigError, match="price output"):
        Price(input=Decimal(1), output=Decimal(wrong))


TOKENS = st.integers(0, 10_000_000)


@given(TOKENS, TOKENS, TOKENS, TOKENS, TOKENS)
def test_whatever_audio_is_reported_has_a_cost(
    read: int, said: int, cached: int, heard: int, spoken: int
) -> None:
    usage = Usage(read, said, min(cached, read), 0, 0, False, min(heard, read), min(spoken, said))
    for provider, model in (("openai", "gpt-realtime"), ("google", "gemini-2.5-flash")):
        cost = price(provider, model, usage)
        assert cost is not None
        assert cost >= 0


@given(TOKENS, TOKENS, TOKENS, TOKENS)
def test_no_cost_is_finer_than_the_ledger(given_: int, out: int, cached: int, written: int) -> None:
    usage = Usage(given_, out, cached, written)
    own = Price(
        input=Decimal("0.000001"), output=Decimal("9.999999"), cached=Decimal("0.3"), cache_write=Decimal(7)
    )
    cost = own.cost(usage)
    assert cost >= 0
    assert cost.scaleb(12) == cost.scaleb(12).to_integral_value()


def call(cost: str | None, *, model: str = "gpt-4o", usage: Usage | None = USAGE) -> ProviderCall:
    return ProviderCall(
        call_id="c",
        purpose="answer",
        provider="openai",
        model=model,
        outcome="ok",
        usage=usage,
        cost=None if cost is None else Decimal(cost),
    )


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_a_million_tiny_costs(count: int) -> None:
    """C16"""
    tracker = CostTracker()
    tiny = call("0.0000001", usage=Usage(1, 0))
    for _ in range(count):
        tracker.add(tiny)
    assert tracker.total == count * Decimal("0.0000001")
    assert tracker.session_total == count / 10_000_000


def test_tracker() -> None:
    tracker = CostTracker()
    assert (tracker.session_total, tracker.by_model, tracker.unpriced_calls) == (0.0, {}, 0)
    for added in (call("0.25"), call("0.5", model="o3"), call("0.25"), call(None, model="ours")):
        tracker.add(added)
    tracker.add(call(None, usage=None))
    assert tracker.session_total == 1.0
    assert tracker.by_model == {"gpt-4o": 0.5, "o3": 0.5, "ours": 0.0}
    assert (tracker.calls, tracker.unpriced_calls) == (5, 1)
    assert tracker.usage.input_tokens == 4_000_000
    assert repr(tracker) == "CostTracker($1.00, 5 calls, 1 unpriced)"
