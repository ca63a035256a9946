"""What a provider call costs in USD, exactly; an unknown price is None and never 0.

List prices come from genai-prices. Its general calculation takes 200 µs a call, so that a model
with plain prices per token is calculated here, from the prices it found.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator, Mapping
from decimal import Decimal
from importlib.metadata import version
from typing import Final

import genai_prices
import msgspec
from genai_prices import calc_price
from genai_prices.types import ModelPrice

from aiforge.core.types import COST_UNIT, ConfigError, Usage

PRICE_LIST: Final = f"genai-prices {version('genai-prices')}"
"""Which list the prices are from that are nobody's own."""
MILLION: Final = Decimal(1_000_000)
_FINEST: Final = Decimal("1e-6")
"""What prices of a million tokens are multiples of."""
_PRICE_SECONDS: Final = 900
"""Some list prices depend on the time of day; none changes within a quarter of an hour."""

_PRICED_AS: Final = {"bedrock": "aws"}
"""Where the price list has another name for a provider."""
_SNAPSHOT: Final = re.compile(r"[-@](\d{4}-\d{2}-\d{2}|\d{8})$")
_PLAIN: Final = frozenset({"input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok"})
_UNUSED: Final = re.compile(
    r"audio|image|video|tool|citation|5m|1h|hours|pixels|pages|chars|(searches|messages)_kcount$"
)
"""Prices of what `Usage` does not count, or few calls have."""


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """USD for a million tokens. Cached tokens without a price of their own cost what input costs.

    Raises ConfigError for a price that is negative, not finite or finer than 10⁻¹² USD a token.
    """

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    cache_write: Decimal | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None:
                continue
            if not value.is_finite() or value < 0:
                raise ConfigError(f"price {name}: must be 0 or more (got {value})")
            if value % _FINEST:
                raise ConfigError(f"price {name}: is finer than 10^-12 USD a token (got {value})")

    def cost(self, usage: Usage) -> Decimal:
        """USD of one call."""
        cached = min(usage.cached_tokens, usage.input_tokens)
        written = min(usage.cache_write_tokens, usage.input_tokens - cached)
        plain = usage.input_tokens - cached - written
        total = (
            plain * self.input
            + cached * (self.input if self.cached is None else self.cached)
            + written * (self.input if self.cache_write is None else self.cache_write)
            + usage.output_tokens * self.output
        )
        return total / MILLION


FREE: Final = Price(input=Decimal(0), output=Decimal(0))
_OWN: Final[Mapping[str, Price]] = {"offline": FREE}


def price(
    provider: str, model: str, usage: Usage, prices: Mapping[str, Price] | None = None
) -> Decimal | None:
    """USD of one call, or None if no price is known.

    `prices` are own prices by `provider/model` and come before list prices. `openai/gpt-4o` and a dated
    snapshot that the list does not know (`gpt-4o-2024-08-06`) are priced as their base model.
    """
    own = _own(provider, model, prices)
    if own is not None:
        return own.cost(usage)
    listed = _listed(provider, model, int(time.time() // _PRICE_SECONDS))
    if listed is None:
        return None
    spoken = usage.input_audio_tokens or usage.output_audio_tokens
    plain = None if spoken else listed.price
    return _calculated(listed, usage) if plain is None else plain.cost(usage)


def highest_price(
    provider: str, model: str, usage: Usage, prices: Mapping[str, Price] | None = None
) -> Decimal | None:
    """The most that a call can cost, whatever becomes of its input in the provider's cache; writing there
    often costs more than not to."""
    cases = (usage, msgspec.structs.replace(usage, cache_write_tokens=usage.input_tokens))
    found = [price(provider, model, case, prices) for case in cases]
    known = [cost for cost in found if cost is not None]
    return max(known, default=None)


def price_list(provider: str, model: str, prices: Mapping[str, Price] | None = None) -> str | None:
    """Whose prices `price` goes by: "own", `PRICE_LIST`, or None where no price is known."""
    if _own(provider, model, prices) is not None:
        return "own"
    return PRICE_LIST if _listed(provider, model, int(time.time() // _PRICE_SECONDS)) else None


def list_price(provider: str, model: str) -> Price | None:
    """The list price of a model whose price depends on nothing but token counts, None for the others."""
    listed = _listed(provider, model, int(time.time() // _PRICE_SECONDS))
    return listed.price if listed is not None else None


def _own(provider: str, model: str, prices: Mapping[str, Price] | None) -> Price | None:
    own = prices.get(f"{provider}/{model}") if prices else None
    return own or _OWN.get(provider)


class _Listed(msgspec.Struct, frozen=True):
    """A model as the price list knows it; `price` is None where it depends on more than token counts, or is
    finer than the ledger."""

    provider: str
    model: str
    price: Price | None


@functools.lru_cache(maxsize=512)
def _listed(provider: str, model: str, quarter: int) -> _Listed | None:
    """`quarter` only dates the entry of this cache."""
    for owner, name in _names(_PRICED_AS.get(provider, provider), model):
        try:
            found = calc_price(genai_prices.Usage(), name, provider_id=owner).model_price
        except LookupError:
            continue
        return _Listed(owner, name, _plain(found))
    return None


def _names(provider: str, model: str) -> Iterator[tuple[str, str]]:
    """Provider and model as the price list may call them, the most exact first."""
    prefix, slash, bare = model.partition("/")
    base = _SNAPSHOT.sub("", model)
    yield provider, model
    if base != model:
        yield provider, base
    if slash:
        yield from _names(_PRICED_AS.get(prefix, prefix), bare)


def _plain(found: ModelPrice) -> Price | None:
    named = {
        key: value for key, value in vars(found).items() if value is not None and not _UNUSED.search(key)
    }
    if not {"input_mtok", "output_mtok"} <= named.keys() <= _PLAIN:
        return None
    if not all(isinstance(value, Decimal) and not value % _FINEST for value in named.values()):
        return None
    return Price(
        input=named["input_mtok"],
        output=named["output_mtok"],
        cached=named.get("cache_read_mtok"),
        cache_write=named.get("cache_write_mtok"),
    )


def _calculated(listed: _Listed, usage: Usage) -> Decimal:
    cached = min(usage.cached_tokens, usage.input_tokens)
    heard = min(usage.input_audio_tokens, usage.input_tokens)
    counted = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=cached,
        cache_write_tokens=min(usage.cache_write_tokens, usage.input_tokens - cached),
        output_tokens=usage.output_tokens,
        output_reasoning_tokens=min(usage.reasoning_tokens, usage.output_tokens),
        input_audio_tokens=heard,
        cache_audio_read_tokens=max(0, cached + heard - usage.input_tokens),
        output_audio_tokens=min(usage.output_audio_tokens, usage.output_tokens),
    )
    exact = calc_price(counted, listed.model, provider_id=listed.provider).total_price
    return exact.quantize(COST_UNIT).normalize() + 0
