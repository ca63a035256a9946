"""Providers that are not built in: registered by name, installed as an entry point, or named by their path.

Whoever writes a provider gives a factory, `factory(settings, model) -> BaseChatModel`. It can be
registered in this process, be an entry point of the group `aiforge.providers`, or be named by where it
is: `package.module:factory`. The last two also work from `AIFORGE_PROVIDER`, so in a worker too.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from aiforge.core.places import load
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ConfigError

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

Factory: TypeAlias = "Callable[[AIForgeSettings, str], BaseChatModel]"

GROUP: Final = "aiforge.providers"
BUILT_IN: Final = ("openai", "offline", "anthropic", "bedrock", "google", "mistral", "ollama")
DEFAULT_MODEL: Final = "default"
"""The model's name where neither the caller nor the provider has one: many gateways serve just one."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PATH: Final = re.compile(r"[A-Za-z_][\w.]*[:.][A-Za-z_]\w*")


class CustomProvider(msgspec.Struct, frozen=True):
    """What makes the models of one provider, and the model it is asked for when none is named."""

    factory: Factory
    default_model: str


_registered: Final[dict[str, CustomProvider]] = {}


def register_provider(name: str, factory: Factory, *, default_model: str = DEFAULT_MODEL) -> None:
    """Make `name` a provider of this process; a second registration replaces the first.

    `factory` gets the settings and the model's name. Raises ConfigError on a name that is built in
    or is not made of letters, digits, `_` and `-`, TypeError on a factory that cannot be called.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"a provider's name is made of letters, digits, _ and -, unlike {name!r}")
    if name in BUILT_IN:
        raise ConfigError(f"provider {name!r} is built in")
    if not callable(factory):
        raise TypeError(f"the factory of provider {name!r} cannot be called: {factory!r}")
    _registered[name] = CustomProvider(factory, default_model)


def provider_names() -> tuple[str, ...]:
    """The built-in providers, and those that this process registered or has installed."""
    return (*BUILT_IN, *sorted({*_registered, *_installed()}))


def check_provider_name(name: str) -> None:
    """Raises ConfigError on what is no provider's name and no path; loads nothing."""
    if name not in provider_names() and not _PATH.fullmatch(name):
        raise unknown_provider(name)


def unknown_provider(name: str) -> ConfigError:
    names = provider_names()
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ConfigError(f"unknown provider {name!r}{hint} (one of {', '.join(names)})")


def find_provider(name: str) -> CustomProvider | None:
    """The provider of this name or path, None where there is none.

    Raises ConfigError when it is there but cannot be loaded. A factory may carry a `default_model`.
    """
    known = _registered.get(name)
    if known is not None:
        return known
    path = _installed().get(name) or (name if _PATH.fullmatch(name) else None)
    return _load(path) if path else None


@functools.cache
def _installed() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=GROUP) if point.name not in BUILT_IN}


@functools.cache
def _load(path: str) -> CustomProvider:
    module, _, attribute = path.rpartition(":" if ":" in path else ".")
    factory = load(module, attribute, what=f"provider {path!r}")
    if not callable(factory):
        raise ConfigError(f"provider {path!r} is not a factory: it cannot be called")
    return CustomProvider(factory, getattr(factory, "default_model", DEFAULT_MODEL))
