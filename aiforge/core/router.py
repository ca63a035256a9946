"""Which model answers: the one that was named, or the cheapest that is good enough."""

from __future__ import annotations

import functools
from decimal import Decimal
from typing import Final

from aiforge.core.custom import BUILT_IN, find_provider
from aiforge.core.pricing import Price, price
from aiforge.core.setting_types import OwnModel
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ConfigError, Usage

QUALITIES: Final = ("high", "medium", "low")

DEFAULT_MODELS: Final = {
    "openai": "gpt-4o-mini",
    "offline": "offline",
    "anthropic": "claude-haiku-4-5",
    "google": "gemini-2.5-flash",
    "mistral": "mistral-small-latest",
}

TIERS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "openai": {
        "high": ("gpt-4o", "gpt-4.1"),
        "medium": ("gpt-4o-mini", "gpt-4.1-mini"),
        "low": ("gpt-4.1-nano",),
    },
    "anthropic": {
        "high": ("claude-opus-4-5", "claude-sonnet-4-5"),
        "medium": ("claude-haiku-4-5",),
        "low": (),
    },
    "google": {
        "high": ("gemini-2.5-pro",),
        "medium": ("gemini-2.5-flash",),
        "low": ("gemini-2.5-flash-lite",),
    },
    "mistral": {
        "high": ("mistral-large-latest",),
        "medium": ("mistral-medium-latest",),
        "low": ("mistral-small-latest",),
    },
}
"""Per provider the models of a tier; a model of a better tier meets the lower ones too."""

TYPICAL: Final = Usage(input_tokens=3000, output_tokens=1000)
"""The call by whose price models are compared."""


def choose_model(settings: AIForgeSettings, *, named: bool, quality: str | None) -> str | None:
    """The model's name, or None where neither the caller nor the provider has one.

    Raises ConfigError on an unknown quality.

    `named` says that the caller itself passed `MODEL`, which beats `quality`; a model from the
    environment or a file does not, but it beats `DEFAULT_QUALITY`.
    """
    for value, name in ((quality, "quality"), (settings.DEFAULT_QUALITY, "DEFAULT_QUALITY")):
        if value is not None and value not in QUALITIES:
            raise ConfigError(f"{name} must be one of {', '.join(QUALITIES)}, not {value!r}")
    if named and settings.MODEL:
        return settings.MODEL
    if settings.MODEL_ROUTER_ENABLED:
        wanted = quality or (settings.DEFAULT_QUALITY if settings.MODEL is None else None)
        routed = model_of_tier(settings, wanted) if wanted else None
        if routed is not None:
            return routed
    return settings.MODEL or default_model(settings.PROVIDER)


def default_model(provider: str) -> str | None:
    """The model of a provider when none is named, None where it has none or is unknown."""
    if provider in BUILT_IN:
        return DEFAULT_MODELS.get(provider)
    custom = find_provider(provider)
    return custom.default_model if custom else None


def own_price(model: OwnModel) -> Price | None:
    """What an own model costs, None when the setting does not say; raises ConfigError when too fine."""
    if model.input is None or model.output is None:
        return None
    return Price(input=model.input, output=model.output, cached=model.cached, cache_write=model.cache_write)


def own_prices(settings: AIForgeSettings, provider: str | None = None) -> dict[str, Price]:
    """The prices of the setting `MODELS` by `provider/model`; those that are named without a provider are of
    this one, else of `PROVIDER`."""
    priced = {name: cost for name, model in settings.MODELS.items() if (cost := own_price(model)) is not None}
    named = {name: cost for name, cost in priced.items() if "/" in name}
    return {f"{provider or settings.PROVIDER}/{name}": cost for name, cost in priced.items()} | named


def model_of_tier(settings: AIForgeSettings, quality: str) -> str | None:
    """The cheapest of the provider's listed models and of one's own that meet the tier, None without any."""
    good_enough = QUALITIES[: QUALITIES.index(quality) + 1]
    prices = own_prices(settings)
    offers = [
        (own.cost(TYPICAL), name)
        for name, model in settings.MODELS.items()
        if model.quality in good_enough and (own := own_price(model)) is not None
    ]
    listed = cheapest_model(settings.PROVIDER, quality)
    if listed is not None:
        cost = price(settings.PROVIDER, listed, TYPICAL, prices)
        assert cost is not None, "cheapest_model chooses among the priced"
        offers.append((cost, listed))
    return min(offers)[1] if offers else None


@functools.cache
def cheapest_model(provider: str, quality: str) -> str | None:
    """The cheapest model of `provider` that meets the tier, None where no price is known."""
    tiers = TIERS.get(provider, {})
    good_enough = QUALITIES[: QUALITIES.index(quality) + 1]
    prices: list[tuple[Decimal, str]] = []
    for tier in good_enough:
        for model in tiers.get(tier, ()):
            cost = price(provider, model, TYPICAL)
            if cost is not None:
                prices.append((cost, model))
    return min(prices)[1] if prices else None
