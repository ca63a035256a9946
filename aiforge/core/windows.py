"""How many tokens a model's context window holds, and who says so.

The first source that knows decides:

1. what the caller says: the setting MAX_INPUT_TOKENS, the window of an own model in MODELS, the
   `profile` of a LangChain model, the `num_ctx` of an Ollama model;
2. for a custom endpoint, and then nobody else, because a public name says nothing of what is deployed
   there: LiteLLM's /model/info and /model_group/info, then an enriched /models, the smallest window of
   all deployments of that name;
3. for Ollama, and then nobody else: the configured num_ctx in /api/show, the allocated one in /api/ps;
4. the catalogue of model profiles in LangChain's packages;
5. for OpenAI's own models, models.dev, once per process;
6. the price list, which knows windows too.

Output limits such as `max_tokens` are never taken for a window. A source that is not there, says no or
takes longer than SECONDS knows nothing. An endpoint is asked once per process and model; what it did not
know it is asked for again after AGAIN_SECONDS.
"""

from __future__ import annotations

import asyncio
import functools
import runpy
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import msgspec
from genai_prices import data_snapshot
from langchain_core.language_models import BaseChatModel
from pydantic import SecretStr

from aiforge.core.foreign_chat import ForeignChat
from aiforge.core.once import Once
from aiforge.core.openai_chat.model import OpenAIChat
from aiforge.core.openai_chat.transport import Transport
from aiforge.core.settings import AIForgeSettings

SECONDS: Final = 3.0
"""How long any source may take; all of an endpoint's routes are asked at the same time."""
AGAIN_SECONDS: Final = 600.0
MODELS_DEV: Final = "https://models.dev/api.json"
OFFICIAL_HOST: Final = "api.openai.com"
PRICE_LIST: Final = "price list"

MOST: Final = 2**53
"""Tokens; what is not below this is no window."""

_FIELDS: Final = (
    "max_input_tokens",
    "context_window",
    "context_length",
    "max_context_length",
    "max_model_len",
)
"""What gateways and servers call the window."""

Fetch: TypeAlias = Callable[[str], Awaitable[Any]]
"""Gets the JSON at an address with the model's own client; None when there is none."""


class ContextWindow(msgspec.Struct, frozen=True):
    """The window in tokens, None while it is unknown; `source` is who said so."""

    tokens: int | None = None
    source: str = "unknown"


UNKNOWN: Final = ContextWindow()


@functools.lru_cache(maxsize=256)
def search_of(url: str, key: SecretStr | None, name: str, period: int) -> Once[ContextWindow]:
    """The one search of all who use this model of this endpoint with this key."""
    return Once()


class WindowFinder:
    """Finds the window of one model, once. Only `find` makes requests."""

    def __init__(
        self, model: BaseChatModel, *, provider: str, model_name: str, settings: AIForgeSettings
    ) -> None:
        self._model = _inner(model)
        self._provider = provider
        self._name = model_name
        self._settings = settings
        self._known: ContextWindow | None = None
        self._asked = False
        self._own_search: Once[ContextWindow] = Once()

    @property
    def known(self) -> ContextWindow:
        """What is known by now: what the caller said or a catalogue has, and what `find` found."""
        if self._known is None:
            self._known = _explicit(self._model, self._name, self._settings)
            if self._known.tokens is None and not self._of_ollama and not _is_custom(self._model):
                known = _cataloged(self._model, self._name)
                self._known = known if known.tokens else _from_prices(self._provider, self._name)
        return self._known

    async def find(self) -> ContextWindow:
        """Ask the sources, the first time. Ollama is asked again while the window is unknown.

        A model that Ollama has not loaded yet has no window before its first answer.
        """
        if self.known.tokens is None or (self.known.source == PRICE_LIST and not self._asked):
            self._known = await self._search.get(self._ask)
            self._asked = True
            if self._of_ollama:
                self._own_search = Once()
        return self.known

    @property
    def _search(self) -> Once[ContextWindow]:
        model = self._model
        if not isinstance(model, OpenAIChat) or not _is_custom(model):
            return self._own_search
        return search_of(model.url, model.key, self._name, int(time.monotonic() / AGAIN_SECONDS))

    @property
    def _of_ollama(self) -> bool:
        return type(self._model).__name__ == "ChatOllama"

    async def _ask(self) -> ContextWindow:
        if self._of_ollama:
            return await _from_ollama(getattr(self._model, "_async_client", None), self._name)
        base, fetch = _base_url(self._model), _fetcher(self._model)
        if base is None or fetch is None:
            return _from_prices(self._provider, self._name)
        if _is_custom(self._model):
            return await _from_endpoint(base, self._name, fetch)
        known = await _from_models_dev(self._name, getattr(self._model, "transport", None))
        return known if known.tokens else _from_prices(self._provider, self._name)


def takes_images(model: BaseChatModel, name: str) -> bool:
    """Whether a model can look at images; what a custom endpoint deploys under a name is taken to."""
    inner = _inner(model)
    return _is_custom(inner) or _profile(inner, name).get("image_inputs") is not False


def _inner(model: BaseChatModel) -> BaseChatModel:
    return model.inner if isinstance(model, ForeignChat) else model


def _is_custom(model: BaseChatModel) -> bool:
    """Whether this is an endpoint with OpenAI's wire format that is not OpenAI's own."""
    base = _base_url(model)
    return base is not None and urlsplit(base).hostname != OFFICIAL_HOST


def _explicit(model: BaseChatModel, name: str, settings: AIForgeSettings) -> ContextWindow:
    own = settings.MODELS.get(name)
    num_ctx = getattr(model, "num_ctx", None)
    profile = _limit((model.profile or {}).get("max_input_tokens"))
    said = (
        (settings.MAX_INPUT_TOKENS, "setting MAX_INPUT_TOKENS"),
        (own.context_window if own else None, "setting MODELS"),
        (profile if profile and not _is_default_profile(model) else None, "profile"),
        (_limit(num_ctx), "num_ctx"),
    )
    return next((ContextWindow(tokens, source) for tokens, source in said if tokens), UNKNOWN)


def _is_default_profile(model: BaseChatModel) -> bool:
    """Whether the profile is what the model's package has for that name, and not the caller's word."""
    try:
        return model.profile == model._resolve_model_profile()
    except Exception:  # noqa: BLE001  # foreign code that LangChain itself does not trust either
        return False


def _base_url(model: BaseChatModel) -> str | None:
    """The endpoint of a model with OpenAI's wire format, None for others."""
    if isinstance(model, OpenAIChat):
        return model.url.partition("?")[0].removesuffix("/chat/completions")
    client = getattr(model, "root_async_client", None)
    url = getattr(client, "base_url", None)
    return None if url is None else str(url).rstrip("/")


def _fetcher(model: BaseChatModel) -> Fetch | None:
    """With the key and certificates of the model's own client, without its retries."""
    if isinstance(model, OpenAIChat):
        transport, key = model.transport, model.key

        async def ours(url: str) -> Any:
            return _parsed(await transport.get(url, key=key, seconds=SECONDS))

        return ours
    client = getattr(model, "root_async_client", None)
    if client is None:
        return None

    async def theirs(url: str) -> Any:
        once = client.with_options(max_retries=0, timeout=SECONDS)
        return await _quietly(once.get(url, cast_to=object))

    return theirs


async def _quietly(asking: Awaitable[Any]) -> Any:
    """What a foreign client answers, None when it raises or is late."""
    try:
        async with asyncio.timeout(SECONDS):
            return await asking
    except Exception:  # noqa: BLE001  # whatever a foreign client raises, it does not know the window
        return None


async def _from_endpoint(base: str, name: str, fetch: Fetch) -> ContextWindow:
    """LiteLLM has its routes below the base URL or at the root, depending on the route."""
    root = urlunsplit(urlsplit(base)._replace(path="", query="", fragment=""))
    bases = list(dict.fromkeys((base, root)))
    routes: tuple[tuple[str, list[str], Callable[[Any, str], Iterator[Any]]], ...] = (
        ("/model/info", bases, _deployments),
        ("/model_group/info", bases, _groups),
        ("/models", [base], _models),
    )
    answers = {
        path: [asyncio.create_task(_await(fetch(f"{prefix}{path}"))) for prefix in prefixes]
        for path, prefixes, _ in routes
    }
    try:
        for path, _, entries in routes:
            limits = [
                limit
                for answer in await asyncio.gather(*answers[path])
                for entry in entries(answer, name)
                for limit in _limits(entry)
            ]
            if limits:
                return ContextWindow(min(limits), path)
        return UNKNOWN
    finally:
        left = [task for tasks in answers.values() for task in tasks]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _await(asking: Awaitable[Any]) -> Any:
    return await asking


def _deployments(answer: Any, name: str) -> Iterator[Any]:
    for entry in _entries(answer):
        if entry.get("model_name") == name:
            yield entry.get("model_info")


def _groups(answer: Any, name: str) -> Iterator[Any]:
    return (entry for entry in _entries(answer) if entry.get("model_group") == name)


def _models(answer: Any, name: str) -> Iterator[Any]:
    for entry in _entries(answer):
        if entry.get("id") == name:
            yield from (entry, entry.get("model_info"), entry.get("top_provider"))


def _entries(answer: Any) -> Iterator[Mapping[str, Any]]:
    data = answer.get("data") if isinstance(answer, dict) else None
    return (entry for entry in data if isinstance(entry, dict)) if isinstance(data, list) else iter(())


def _limits(entry: Any) -> Iterator[int]:
    if isinstance(entry, dict):
        yield from filter(None, (_limit(entry.get(field)) for field in _FIELDS))


def _limit(value: object) -> int | None:
    """A number of tokens, if it is one."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < MOST:
        return None
    return int(value) if value == int(value) else None


async def _from_ollama(client: Any, name: str) -> ContextWindow:
    if client is None:
        return UNKNOWN
    shown, running = await asyncio.gather(_quietly(client.show(name)), _quietly(client.ps()))
    for line in str(getattr(shown, "parameters", None) or "").splitlines():
        words = line.split()
        if words[:1] == ["num_ctx"] and (tokens := _limit(words[-1])):
            return ContextWindow(tokens, "/api/show")
    allocated = [
        tokens
        for loaded in getattr(running, "models", None) or ()
        if name in _aliases(loaded) and (tokens := _limit(loaded.context_length))
    ]
    return ContextWindow(min(allocated), "/api/ps") if allocated else UNKNOWN


def _aliases(loaded: Any) -> set[str]:
    """Ollama adds the tag `latest` to a name without one."""
    names = {str(name) for name in (loaded.name, loaded.model) if name}
    return names | {name.removesuffix(":latest") for name in names}


def _cataloged(model: BaseChatModel, name: str) -> ContextWindow:
    tokens = _limit(_profile(model, name).get("max_input_tokens"))
    return ContextWindow(tokens, "catalog") if tokens else UNKNOWN


def _profile(model: BaseChatModel, name: str) -> Mapping[str, Any]:
    return model.profile or (_openai_profiles().get(name) if isinstance(model, OpenAIChat) else None) or {}


@functools.cache
def _openai_profiles() -> Mapping[str, Any]:
    """The data file of LangChain's OpenAI package, read without importing half a second of package."""
    package = find_spec("langchain_openai")
    if package is None or package.origin is None:
        return {}
    file = Path(package.origin).parent / "data" / "_profiles.py"
    profiles = runpy.run_path(str(file)).get("_PROFILES") if file.is_file() else None
    return profiles if isinstance(profiles, dict) else {}


def _from_prices(provider: str, name: str) -> ContextWindow:
    try:
        _, model = data_snapshot.get_snapshot().find_provider_model(name, None, provider, None)
    except LookupError:
        return UNKNOWN
    return ContextWindow(model.context_window, PRICE_LIST) if model.context_window else UNKNOWN


_models_dev: Final[Once[Mapping[str, Any]]] = Once()


async def _from_models_dev(name: str, transport: Transport | None) -> ContextWindow:
    """What models.dev says of OpenAI's models: asked once per process, without any key."""

    async def ask() -> Mapping[str, Any]:
        used = transport or Transport()
        try:
            return _openai_models(_parsed(await used.get(MODELS_DEV, key=None, seconds=SECONDS)))
        finally:
            if used is not transport:
                await used.aclose()

    known = (await _models_dev.get(ask)).get(name)
    limits = known.get("limit") if isinstance(known, dict) else None
    if not isinstance(limits, dict):
        return UNKNOWN
    tokens = _limit(limits.get("input")) or _limit(limits.get("context"))
    return ContextWindow(tokens, "models.dev") if tokens else UNKNOWN


def _openai_models(catalog: Any) -> Mapping[str, Any]:
    provider = catalog.get("openai") if isinstance(catalog, dict) else None
    models = provider.get("models") if isinstance(provider, dict) else None
    return models if isinstance(models, dict) else {}


def _parsed(body: bytes | None) -> Any:
    try:
        return None if body is None else msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
