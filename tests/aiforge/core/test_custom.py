"""Providers that are added, own models and the list of what there is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import FakeListChatModel

from aiforge import ChatAgent, ConfigError, list_models, register_provider
from aiforge.core import custom
from aiforge.core.pricing import price
from aiforge.core.providers import create_model
from aiforge.core.router import own_prices
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import Usage

MODULE = """
from langchain_core.language_models.fake_chat_models import FakeListChatModel

def gateway(settings, model):
    return FakeListChatModel(responses=[f"{model} through the gateway"])

gateway.default_model = "house"
number = 7

def wrong(settings, model):
    return "no model"
"""


def echo(settings: AIForgeSettings, model: str) -> BaseChatModel:
    return FakeListChatModel(responses=[f"I am {model}"])


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("AIFORGE_PROVIDER", raising=False)
    monkeypatch.delenv("AIFORGE_MODEL", raising=False)
    yield
    custom._registered.clear()
    custom._installed.cache_clear()
    custom._load.cache_clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "house_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("house_models", None)


def test_a_registered_provider_answers_by_name() -> None:
    register_provider("internal_gateway", echo, default_model="small")
    assert "internal_gateway" in custom.provider_names()
    assert ChatAgent(provider="internal_gateway").chat("Hi").message == "I am small"
    response = ChatAgent(provider="internal_gateway", MODEL="large").chat("Hi")
    assert (response.message, response.model, response.priced) == ("I am large", "large", False)


@pytest.mark.parametrize("name", ["openai", "offline", "", "a:b", "a.b", "ä"])
def test_a_name_that_cannot_be_registered(name: str) -> None:
    with pytest.raises(ConfigError, match="provider"):
        register_provider(name, echo)


def test_a_factory_that_is_none() -> None:
    with pytest.raises(TypeError, match="cannot be called"):
        register_provider("mine", "echo")  # type: ignore[arg-type]


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("path", ["house_models:gateway", "house_models.gateway"])
def test_the_environment_names_a_factory_by_its_path(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setenv("AIFORGE_PROVIDER", path)
    assert ChatAgent().chat("Hi").message == "house through the gateway"
    assert ChatAgent(MODEL="other").chat("Hi").message == "other through the gateway"


def test_an_entry_point_is_a_provider(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = package / "house-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: house\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{custom.GROUP}]\nhouse = house_models:gateway\n")
    monkeypatch.setenv("AIFORGE_PROVIDER", "house")
    assert "house" in custom.provider_names()
    assert ChatAgent().chat("Hi").message == "house through the gateway"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("no_such_module:gateway", "cannot be loaded"),
        ("house_models:gone", "cannot be loaded"),
        ("house_models:number", "cannot be called"),
        ("house_models:wrong", "chat model, not str"),
        ("gatewy", "unknown provider"),
    ],
)
def test_what_a_path_cannot_be(path: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        ChatAgent(provider=path)


def test_a_registered_provider_is_suggested() -> None:
    register_provider("gateway", echo)
    with pytest.raises(ConfigError, match="did you mean 'gateway'"):
        create_model(AIForgeSettings.load(PROVIDER="gatewy"))


def test_own_models_are_priced_routed_and_listed() -> None:
    models = {
        "house-large": {"quality": "high", "input": "0.01", "output": "0.02", "context_window": 32_768},
        "house-plain": {"context_window": 8_192},
    }
    settings = AIForgeSettings.load(MODELS=models)
    assert set(own_prices(settings)) == {"openai/house-large"}
    million = Usage(input_tokens=1_000_000, output_tokens=1_000_000)
    assert price("openai", "house-large", million, own_prices(settings)) == Decimal("0.03")
    agent = ChatAgent(quality="high", OPENAI_API_KEY="key", MODELS=models)
    assert agent._model_name == "house-large"
    listed = {info.model: info for info in list_models("openai", settings=settings)}
    large = listed["house-large"]
    assert (large.quality, large.input_price, large.context_window) == ("high", Decimal("0.01"), 32_768)
    assert listed["house-plain"].input_price is None
    assert listed["gpt-4o-mini"].default


@pytest.mark.parametrize("wrong", [{"input": "-1"}, {"quality": "best"}, {"window": 5}])
def test_an_own_model_that_is_wrong(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="MODELS"):
        AIForgeSettings.load(MODELS={"mine": wrong})


def test_the_list_names_price_window_and_tier() -> None:
    listed = {(info.provider, info.model): info for info in list_models()}
    mini = listed["openai", "gpt-4o-mini"]
    assert (mini.input_price, mini.output_price) == (Decimal("0.15"), Decimal("0.6"))
    assert (mini.context_window, mini.quality) == (128_000, "medium")
    assert listed["offline", "offline"].input_price == 0
    assert {info.provider for info in list_models("anthropic")} == {"anthropic"}
    with pytest.raises(ConfigError, match="unknown provider 'opnai'"):
        list_models("opnai")


def test_the_text_of_a_langchain_model_can_be_encoded() -> None:
    """LangChain's text is a subclass of str, which no event can carry."""
    register_provider("gateway", echo)
    agent = ChatAgent(provider="gateway")
    pieces = list(agent.run_stream("Hi"))
    assert {type(piece) for piece in pieces} == {str}
    assert type(agent.chat("Hi").message) is str
