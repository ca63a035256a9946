"""Which model `create_model` makes, and what it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama

from aiforge.core.custom import provider_names
from aiforge.core.foreign_chat import ForeignChat
from aiforge.core.offline import OfflineChat
from aiforge.core.openai_chat.model import OpenAIChat
from aiforge.core.providers import create_model
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ConfigError


def load(**settings: object) -> AIForgeSettings:
    return AIForgeSettings.load(**settings)


def test_the_default_is_openai() -> None:
    model = create_model(load(TEMPERATURE=0.5))
    assert isinstance(model, OpenAIChat)
    assert model.model_name == "gpt-4o-mini"
    assert model.url == "https://api.openai.com/v1/chat/completions"


def test_a_named_model_comes_first() -> None:
    model = create_model(load(MODEL="gpt-4o"), model="gpt-4.1")
    assert isinstance(model, OpenAIChat)
    assert model.model_name == "gpt-4.1"


def test_offline() -> None:
    model = create_model(load(PROVIDER="offline"))
    assert isinstance(model, OfflineChat)
    assert model.model_name == "offline"


def test_packages_of_langchain_with_their_retries_off() -> None:
    anthropic = create_model(load(PROVIDER="anthropic", MODEL="claude-test", TOKEN_TIMEOUT=7))
    assert isinstance(anthropic, ForeignChat)
    assert isinstance(anthropic.inner, ChatAnthropic)
    assert anthropic.inner.max_retries == 0
    assert anthropic.limits.token == 7
    ollama = create_model(load(PROVIDER="ollama", MODEL="llama3"))
    assert isinstance(ollama, ForeignChat)
    assert isinstance(ollama.inner, ChatOllama)
    assert ollama.inner.model == ollama.model_name == "llama3"


@pytest.mark.parametrize("provider", ["mistral", "google", "bedrock"])
def test_a_missing_package_is_named(provider: str) -> None:
    with pytest.raises(ConfigError, match=rf"pip install aiforge\[{provider}\]"):
        create_model(load(PROVIDER=provider, MODEL="m"))


def test_an_unknown_provider_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown provider 'opena1'; did you mean 'openai'"):
        create_model(load(PROVIDER="opena1"))


def test_a_provider_without_a_default_model() -> None:
    with pytest.raises(ConfigError, match="AIFORGE_MODEL"):
        create_model(load(PROVIDER="ollama"))


def test_all_names() -> None:
    assert provider_names() == ("openai", "offline", "anthropic", "bedrock", "google", "mistral", "ollama")


def test_extras_are_not_loaded_before_they_are_chosen() -> None:
    code = "import sys, aiforge.core.providers; print([m for m in sys.modules if m.startswith('langchain')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "langchain_core" in loaded
    assert "langchain.chat_models" not in loaded
    assert "langchain_openai" not in loaded
