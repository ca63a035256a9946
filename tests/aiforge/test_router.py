"""Which model is chosen."""

from __future__ import annotations

import pytest

from aiforge import ChatAgent, ConfigError
from aiforge.core.pricing import price
from aiforge.core.router import DEFAULT_MODELS, QUALITIES, TIERS, TYPICAL, cheapest_model
from aiforge.core.settings import AIForgeSettings


def chosen(**options: object) -> str:
    return ChatAgent(OPENAI_API_KEY="key", **options)._model_name  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_model_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIFORGE_MODEL", raising=False)


def test_the_default_is_the_providers_default() -> None:
    assert chosen() == "gpt-4o-mini"
    assert chosen(TEMPERATURE=0.1, MAX_TOKENS=5) == "gpt-4o-mini"
    assert chosen(provider="offline") == DEFAULT_MODELS["offline"]


def test_a_better_quality_is_never_cheaper() -> None:
    costs = [price("openai", chosen(quality=quality), TYPICAL) for quality in QUALITIES]
    assert None not in costs
    assert costs == sorted(costs, key=lambda cost: -float(cost or 0))
    assert len({chosen(quality=quality) for quality in QUALITIES}) == 3


def test_every_provider_with_tiers_has_a_price_for_one_model_of_each() -> None:
    for provider in TIERS:
        for quality in QUALITIES:
            assert cheapest_model(provider, quality) is not None, (provider, quality)


def test_a_named_model_beats_quality() -> None:
    assert chosen(quality="high", MODEL="gpt-4o-mini") == "gpt-4o-mini"


def test_quality_beats_the_model_of_the_environment_and_that_beats_the_default_quality(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIFORGE_MODEL", "my-model")
    assert chosen(DEFAULT_QUALITY="high") == "my-model"
    assert chosen(quality="high") == cheapest_model("openai", "high")


def test_default_quality_is_used_where_nothing_else_is_said() -> None:
    assert chosen(DEFAULT_QUALITY="high") == cheapest_model("openai", "high")


def test_without_router_quality_chooses_nothing() -> None:
    assert chosen(quality="high", MODEL_ROUTER_ENABLED=False) == "gpt-4o-mini"


@pytest.mark.parametrize("options", [{"quality": "best"}, {"DEFAULT_QUALITY": "best"}])
def test_an_unknown_quality_is_named(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="best"):
        chosen(**options)


def test_settings_are_the_agents_own() -> None:
    agent = ChatAgent(MODEL="gpt-4o", TEMPERATURE=0.3)
    assert isinstance(agent.settings, AIForgeSettings)
    assert (agent.settings.MODEL, agent.settings.TEMPERATURE) == ("gpt-4o", 0.3)
