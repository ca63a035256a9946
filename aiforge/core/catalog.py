"""The models one can choose from, with what is known of them here, without asking anyone."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

import msgspec
from genai_prices import data_snapshot

from aiforge.core.custom import provider_names
from aiforge.core.pricing import FREE, Price, list_price
from aiforge.core.router import DEFAULT_MODELS, QUALITIES, TIERS, own_price
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ConfigError

LISTED: Final = ("openai", "anthropic", "google", "mistral")
"""Providers whose models the price list holds under the names that they are called by."""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One model. Prices are USD for a million tokens, the window is in tokens.

    None is unknown, and with a price also one that depends on more than token counts.
    """

    provider: str
    model: str
    quality: str | None = None
    input_price: Decimal | None = None
    output_price: Decimal | None = None
    cached_price: Decimal | None = None
    context_window: int | None = None
    default: bool = False
    """This is the model of its provider when none is named."""


def list_models(provider: str | None = None, *, settings: AIForgeSettings | None = None) -> list[ModelInfo]:
    """All models of `provider`, or of all providers, that are priced or routed to; own ones come first.

    Own models are those of the setting `MODELS`, and belong to the provider of `settings`. Raises
    ConfigError on an unknown provider.
    """
    settings = settings or AIForgeSettings.load()
    known = {settings.PROVIDER, *provider_names()}
    if provider is not None and provider not in known:
        raise ConfigError(f"unknown provider {provider!r} (one of {', '.join(sorted(known))})")
    found = {(info.provider, info.model): info for info in _listed()}
    own = {(info.provider, info.model): info for info in _own(settings)}
    every = [*own.values(), *(info for key, info in found.items() if key not in own)]
    return [info for info in every if provider in (None, info.provider)]


def _own(settings: AIForgeSettings) -> Iterator[ModelInfo]:
    for name, model in settings.MODELS.items():
        yield _info(settings.PROVIDER, name, own_price(model), model.context_window, model.quality)


def _listed() -> Iterator[ModelInfo]:
    yield _info("offline", DEFAULT_MODELS["offline"], FREE, None, None)
    for provider in data_snapshot.get_snapshot().providers:
        for model in provider.models if provider.id in LISTED else ():
            cost = list_price(provider.id, model.id)
            quality = _quality(provider.id, model.id)
            if (cost is not None or quality) and not model.id.endswith("-"):  # such an entry is a family
                yield _info(provider.id, model.id, cost, model.context_window, quality)


def _quality(provider: str, model: str) -> str | None:
    tiers = TIERS.get(provider, {})
    return next((quality for quality in QUALITIES if model in tiers.get(quality, ())), None)


def _info(
    provider: str, model: str, cost: Price | None, window: int | None, quality: str | None
) -> ModelInfo:
    return ModelInfo(
        provider=provider,
        model=model,
        quality=quality,
        input_price=cost.input if cost else None,
        output_price=cost.output if cost else None,
        cached_price=cost.cached if cost else None,
        context_window=window,
        default=DEFAULT_MODELS.get(provider) == model,
    )
