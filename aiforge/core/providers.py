"""The seam between a turn and whoever answers it.

Two providers are ours: `openai`, for every endpoint with that wire format, and `offline`. Five are
LangChain's packages, installed as extras; more can be added (`aiforge.core.custom`). Whatever the
model, a call gives deltas or a completion, raises the ProviderError tree, and is made once: the one
retry layer is the turn's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from importlib import import_module
from typing import Any, Final

import msgspec
from langchain_core.language_models import BaseChatModel
from pydantic import ValidationError

from aiforge.core.custom import (
    BUILT_IN,
    DEFAULT_MODEL,
    CustomProvider,
    find_provider,
    unknown_provider,
)
from aiforge.core.delta_chat import DeltaChat
from aiforge.core.deltas import CallRequest, Completion, Delta
from aiforge.core.foreign_chat import ForeignChat, ForeignLimits, delta_chat
from aiforge.core.offline import OfflineChat
from aiforge.core.openai_chat.model import OpenAIChat
from aiforge.core.openai_chat.transport import Transport
from aiforge.core.router import default_model
from aiforge.core.settings import PREFIX, AIForgeSettings
from aiforge.core.types import ConfigError


class _Package(msgspec.Struct, frozen=True):
    """A provider of LangChain's: its name there, and the keywords that switch its own retries off."""

    name: str
    once: dict[str, Any] = {}


_PACKAGES: Final = {
    "anthropic": _Package("anthropic", {"max_retries": 0}),
    "bedrock": _Package("bedrock_converse"),
    "google": _Package("google_genai", {"max_retries": 1}),
    "mistral": _Package("mistralai", {"max_retries": 1}),
    "ollama": _Package("ollama"),
}
"""Google's and Mistral's packages count attempts under that name; Ollama's repeats nothing, and Bedrock's
is told through botocore."""


def create_model(
    settings: AIForgeSettings, *, model: str | None = None, transport: Transport | None = None
) -> BaseChatModel:
    """The chat model of `settings.PROVIDER`; raises ConfigError.

    `model` comes before `settings.MODEL`, and that before the provider's default. Models of provider
    `openai` that are given the same `transport` share its connections. A missing key is an error
    of the call, except with packages that look for it here.
    """
    provider = settings.PROVIDER
    custom = None if provider in BUILT_IN else find_provider(provider)
    if custom is None and provider not in BUILT_IN:
        raise unknown_provider(provider)
    name = model or settings.MODEL or default_model(provider)
    if name is None:
        raise ConfigError(f"provider {provider!r} has no default model: set MODEL or AIFORGE_MODEL")
    if custom is not None:
        return _from_factory(custom, name, settings)
    if provider == "openai":
        return OpenAIChat.from_settings(settings, model=name, transport=transport)
    if provider == "offline":
        return OfflineChat(model_name=name)
    return _from_package(provider, name, settings)


def check_provider(settings: AIForgeSettings) -> None:
    """Raises ConfigError naming a setting when `PROVIDER` can make no model here, whichever is asked for."""
    try:
        create_model(settings, model=settings.MODEL or default_model(settings.PROVIDER) or DEFAULT_MODEL)
    except ConfigError as error:
        named = str(error).startswith(PREFIX)
        raise error if named else ConfigError(f"{PREFIX}PROVIDER: {error}") from None


def stream_deltas(model: BaseChatModel, request: CallRequest) -> AsyncGenerator[Delta, None]:
    """One streamed call, as described in `aiforge.core.deltas`; raises ProviderError.

    Cancelling the reader, or closing the generator, closes the connection.
    """
    return delta_chat(model).stream_deltas(request)


async def complete(model: BaseChatModel, request: CallRequest) -> Completion:
    """One call that is answered in one piece; raises ProviderError."""
    return await delta_chat(model).complete(request)


def _from_factory(custom: CustomProvider, name: str, settings: AIForgeSettings) -> BaseChatModel:
    model = custom.factory(settings, name)
    if isinstance(model, DeltaChat):
        return model
    if not isinstance(model, BaseChatModel):
        raise ConfigError(
            f"provider {settings.PROVIDER!r}: its factory must make a LangChain chat model, "
            f"not {type(model).__name__}"
        )
    return _limited(model, name, settings)


def _limited(model: BaseChatModel, name: str, settings: AIForgeSettings) -> ForeignChat:
    limits = ForeignLimits(settings.FIRST_TOKEN_TIMEOUT, settings.TOKEN_TIMEOUT)
    return ForeignChat(model_name=name, inner=model, limits=limits)


def _from_package(provider: str, name: str, settings: AIForgeSettings) -> BaseChatModel:
    package = _PACKAGES[provider]
    try:
        # An extra, and half a second of imports: loaded where it is chosen, not where it might be.
        init_chat_model = import_module("langchain.chat_models").init_chat_model
        once = package.once
        if provider == "bedrock":
            once = {"config": import_module("botocore.config").Config(retries={"total_max_attempts": 1})}
        model = init_chat_model(name, model_provider=package.name, **once)
    except ImportError:
        raise ConfigError(
            f"provider {provider!r} needs a package of its own: pip install aiforge[{provider}]"
        ) from None
    except ValidationError as error:
        text = error.errors(include_input=False, include_url=False)[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"provider {provider!r}: {text}") from None
    return _limited(model, name, settings)
