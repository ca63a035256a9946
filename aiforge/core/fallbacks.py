"""Who is asked next when a model has failed for good: the routes of the setting `FALLBACKS`.

A failure is looked up by its code, then by the codes of what it is a kind of, then as `*` if it can pass;
last comes `provider_error`, which every failure is. The list that is found is walked to its end, whatever
goes wrong on the way, and its last error is the turn's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from langchain_core.language_models import BaseChatModel

from aiforge.core.custom import provider_names, unknown_provider
from aiforge.core.gate import Gate, Place
from aiforge.core.openai_chat.transport import Transport
from aiforge.core.pricing import Price
from aiforge.core.providers import create_model
from aiforge.core.router import QUALITIES, model_of_tier, own_prices
from aiforge.core.setting_types import ANY_ERROR
from aiforge.core.settings import PREFIX, AIForgeSettings
from aiforge.core.types import ConfigError, ProviderError

TIER: Final = "tier:"
PATIENCE: Final = 5.0
"""Seconds for which somebody else is not asked yet, when a model takes no calls for now."""


@dataclass(frozen=True, slots=True)
class Route:
    """A model that can be asked, and the own prices by which it is priced."""

    model: BaseChatModel
    provider: str
    model_name: str
    prices: Mapping[str, Price] | None = None

    def is_of(self, provider: str, model_name: str) -> bool:
        """Whether this is the same model at the same place."""
        return (self.provider, self.model_name) == (provider, model_name)


class Fallbacks:
    """The routes of one process or agent; each model is made once, here. Raises ConfigError."""

    def __init__(self, settings: AIForgeSettings, transport: Transport | None = None) -> None:
        """Models of OpenAI's wire format share the connections of `transport`."""
        self._settings = settings
        self._transport = transport
        self._prices = own_prices(settings)
        for name in settings.ENDPOINTS:
            if name in provider_names():
                raise ConfigError(f"{PREFIX}ENDPOINTS: {name!r} is the name of a provider; choose another")
        made: dict[str, Route] = {}
        for text in {text for routes in settings.FALLBACKS.values() for text in routes}:
            made[text] = self._route(text)
        self._routes = {code: [made[text] for text in texts] for code, texts in settings.FALLBACKS.items()}

    def after(self, error: ProviderError) -> list[Route]:
        """Whom to ask after this failure, in order; nobody where the setting says nothing of it."""
        kinds = [kind.code for kind in type(error).__mro__ if issubclass(kind, ProviderError)]
        keys = [*kinds[:-1], *([ANY_ERROR] if error.retryable else []), ProviderError.code]
        return next((self._routes[key] for key in keys if key in self._routes), [])

    def _route(self, text: str) -> Route:
        try:
            return self._resolved(text)
        except ConfigError as error:
            raise ConfigError(f"{PREFIX}FALLBACKS: route {text!r}: {error}") from None

    def _resolved(self, text: str) -> Route:
        settings = self._settings
        if text.startswith(TIER):
            return self._made(settings, settings.PROVIDER, self._of_tier(text.removeprefix(TIER)))
        provider, slash, name = text.partition("/")
        if slash and provider in settings.ENDPOINTS:
            return self._at(provider, _named(name))
        if slash and provider in (settings.PROVIDER, *provider_names()):
            elsewhere = settings.model_copy(update={"PROVIDER": provider})
            if provider == "openai" != settings.PROVIDER and settings.OPENAI_API_KEY is None:
                raise ConfigError("its key is missing; set OPENAI_API_KEY")
            return self._made(elsewhere, provider, _named(name))
        usual = AIForgeSettings.model_fields["OPENAI_BASE_URL"].default
        if slash and settings.PROVIDER == "openai" and usual == settings.OPENAI_BASE_URL:
            raise unknown_provider(provider)
        return self._made(settings, settings.PROVIDER, text)

    def _made(self, settings: AIForgeSettings, provider: str, name: str) -> Route:
        model = create_model(settings, model=name, transport=self._transport)
        return Route(model, provider, name, self._prices)

    def _of_tier(self, quality: str) -> str:
        if quality not in QUALITIES:
            raise ConfigError(f"a tier is one of {', '.join(QUALITIES)}")
        name = model_of_tier(self._settings, quality)
        if name is None:
            raise ConfigError(
                f"no model of provider {self._settings.PROVIDER!r} with a known price meets this tier"
            )
        return name

    def _at(self, name: str, model_name: str) -> Route:
        """A model of the endpoint of this name: that is the provider `openai` at another place."""
        endpoint = self._settings.ENDPOINTS[name]
        elsewhere = self._settings.model_copy(
            update={
                "PROVIDER": "openai",
                "OPENAI_BASE_URL": endpoint.base_url,
                "OPENAI_API_KEY": endpoint.api_key,
                "MINIMAL_ENDPOINT": endpoint.minimal,
            }
        )
        try:
            return self._made(elsewhere, name, model_name)
        except ConfigError as error:
            text = str(error).removeprefix(PREFIX)
            for setting, key in (("OPENAI_BASE_URL", "base_url"), ("OPENAI_API_KEY", "api_key")):
                text = text.replace(setting, key)
            raise ConfigError(f"{PREFIX}ENDPOINTS: {name}: {text}") from None


class Way:
    """How one turn goes from route to route: where it is, and where it can go on."""

    def __init__(self, first: Route, fallbacks: Fallbacks | None) -> None:
        self.route = first
        self._fallbacks = fallbacks
        self._asked = [first]
        self._left: list[Route] | None = None

    @property
    def fell_back(self) -> bool:
        return len(self._asked) > 1

    @property
    def ends(self) -> bool:
        """Whether nobody else can be asked, whatever happens."""
        return self._fallbacks is None or self._left == []

    def leads_on(self, error: ProviderError) -> bool:
        """Whether somebody else can be asked after this failure."""
        return bool(self._next(error))

    async def enter(self, gate: Gate, tokens: Callable[[], int], time_left: float) -> Place:
        """A place for a call of the route; raises ProviderError.

        Where somebody else can be asked, a model that takes no calls for longer than PATIENCE is not waited
        for: what `gate` knows of it is its failure.
        """
        name, model = self.route.provider, self.route.model_name
        began = time.monotonic()
        if time_left > PATIENCE and not self.ends:
            try:
                return await gate.enter(name, model, tokens=tokens, time_left=PATIENCE)
            except ProviderError as error:
                if self.leads_on(error):
                    raise
        return await gate.enter(name, model, tokens=tokens, time_left=time_left + began - time.monotonic())

    def go_on(self, error: ProviderError) -> bool:
        """Go on to the next route, if there is one; every model is asked once in its turn."""
        left = self._next(error)
        if not left:
            return False
        self.route, self._left = left[0], left[1:]
        self._asked.append(self.route)
        return True

    def _next(self, error: ProviderError) -> list[Route]:
        if self._fallbacks is None:
            return []
        routes = self._fallbacks.after(error) if self._left is None else self._left
        return [
            route
            for route in routes
            if not any(route.is_of(asked.provider, asked.model_name) for asked in self._asked)
        ]


def check_fallbacks(settings: AIForgeSettings) -> None:
    """Raises ConfigError when a route of `FALLBACKS` can be asked by nobody here."""
    Fallbacks(settings)


def _named(name: str) -> str:
    if not name.strip():
        raise ConfigError("no model is named after the provider")
    return name
