"""The settings `FALLBACKS` and `ENDPOINTS`: what they may say, and whom a failure leads to."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from aiforge.core.fallbacks import Fallbacks, Route, Way
from aiforge.core.openai_chat.failures import from_status, from_stream
from aiforge.core.openai_chat.model import OpenAIChat
from aiforge.core.pricing import PRICE_LIST, price_list
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import (
    APITimeoutError,
    AuthenticationError,
    ConfigError,
    ContextLengthError,
    EmptyAnswerError,
    ProviderError,
    RateLimitError,
    RequestRefusedError,
    StreamCutError,
    UnavailableError,
)

BACKUP = {"base_url": "http://backup.test/v1", "api_key": "sk-backup-secret"}


def settings(**given: object) -> AIForgeSettings:
    return AIForgeSettings.load(**{"OPENAI_API_KEY": "sk-test", **given})


def fallbacks(lists: dict[str, list[str]], **given: object) -> Fallbacks:
    return Fallbacks(settings(FALLBACKS=lists, ENDPOINTS={"backup": BACKUP}, **given))


def places(routes: list[Route]) -> list[str]:
    return [f"{route.provider}/{route.model_name}" for route in routes]


ALL = {
    "rate_limited": ["limited"],
    "provider_timeout": ["slow"],
    "provider_authentication": ["locked"],
    "provider_context_length": ["long"],
    "provider_refused": ["refused"],
    "*": ["passing"],
    "provider_error": ["any"],
}


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RateLimitError("429"), "limited"),
        (RateLimitError("quota", retryable=False), "limited"),
        (APITimeoutError("late"), "slow"),
        (AuthenticationError("401"), "locked"),
        (ContextLengthError("400"), "long"),
        (RequestRefusedError("400"), "refused"),
        (UnavailableError("503"), "passing"),
        (StreamCutError("cut"), "passing"),
        (EmptyAnswerError("empty"), "passing"),
        (EmptyAnswerError("empty", retryable=False), "any"),
        (UnavailableError("501", retryable=False), "any"),
        (ProviderError("odd"), "any"),
    ],
)
def test_each_class_of_failure_has_its_list(error: ProviderError, expected: str) -> None:
    assert places(fallbacks(ALL).after(error)) == [f"openai/{expected}"]


def test_a_failure_that_nothing_is_said_of_leads_nowhere() -> None:
    some = fallbacks({"rate_limited": ["limited"], "*": ["passing"]})
    assert some.after(AuthenticationError("401")) == []
    assert places(some.after(UnavailableError("503"))) == ["openai/passing"]
    assert places(fallbacks({"provider_refused": ["b"]}).after(ContextLengthError("long"))) == ["openai/b"]


def test_a_route_is_a_model_another_provider_an_endpoint_or_a_tier() -> None:
    texts = ["gpt-4.1", "openai/gpt-4o", "offline/o", "backup/meta/llama", "tier:low"]
    routes = fallbacks({"*": texts}).after(UnavailableError("503"))
    assert places(routes) == [
        "openai/gpt-4.1", "openai/gpt-4o", "offline/o", "backup/meta/llama", "openai/gpt-4.1-nano",
    ]  # fmt: skip
    models = [route.model for route in routes]
    assert [isinstance(model, OpenAIChat) for model in models] == [True, True, False, True, True]
    assert isinstance(models[3], OpenAIChat)
    assert (models[3].url, models[3].model_name) == ("http://backup.test/v1/chat/completions", "meta/llama")
    assert models[3].key is not None
    assert models[3].key.get_secret_value() == "sk-backup-secret"
    assert isinstance(models[0], OpenAIChat)
    assert "backup" not in models[0].url


def test_where_model_names_have_slashes_only_a_providers_name_is_one() -> None:
    router = fallbacks(
        {"*": ["meta-llama/llama", "openai/openai/gpt-4o"]}, OPENAI_BASE_URL="http://r.test/v1"
    )
    assert places(router.after(UnavailableError("503"))) == [
        "openai/meta-llama/llama",
        "openai/openai/gpt-4o",
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"FALLBACKS": {"rate_limit": ["b"]}},
            "AIFORGE_FALLBACKS: 'rate_limit' is no error .*'rate_limited'",
        ),
        ({"FALLBACKS": {"*": []}}, r"AIFORGE_FALLBACKS: '\*' needs a list of routes"),
        ({"FALLBACKS": {"*": [" "]}}, r"AIFORGE_FALLBACKS: '\*' needs a list of routes"),
        ({"FALLBACKS": {"*": "b"}}, "AIFORGE_FALLBACKS: \\*: Input should be a valid list"),
        ({"FALLBACKS": {"*": ["tier:fast"]}}, "AIFORGE_FALLBACKS: route 'tier:fast': .*high, medium, low"),
        (
            {"FALLBACKS": {"*": ["tier:low"]}, "PROVIDER": "offline"},
            "AIFORGE_FALLBACKS: route 'tier:low': no model .* known price",
        ),
        (
            {"FALLBACKS": {"*": ["nobody/m"]}},
            "AIFORGE_FALLBACKS: route 'nobody/m': unknown provider 'nobody'",
        ),
        ({"FALLBACKS": {"*": ["offline/"]}}, "AIFORGE_FALLBACKS: route 'offline/': no model is named"),
        (
            {"FALLBACKS": {"*": ["openai/m"]}, "PROVIDER": "offline", "OPENAI_API_KEY": None},
            "AIFORGE_FALLBACKS: route 'openai/m': its key is missing; set OPENAI_API_KEY",
        ),
        ({"ENDPOINTS": {"a b": BACKUP}}, "AIFORGE_ENDPOINTS: an endpoint's name is made of"),
        (
            {"ENDPOINTS": {"offline": BACKUP}, "FALLBACKS": {"*": ["m"]}},
            "AIFORGE_ENDPOINTS: 'offline' is the name of a provider",
        ),
        ({"ENDPOINTS": {"b": {"api_key": "sk-backup-secret"}}}, "AIFORGE_ENDPOINTS: b: base_url: Field req"),
        (
            {"ENDPOINTS": {"b": {**BACKUP, "base_url": "ftp:/x"}}, "FALLBACKS": {"*": ["b/m"]}},
            "AIFORGE_FALLBACKS: route 'b/m': AIFORGE_ENDPOINTS: b: base_url: must be",
        ),
    ],
)
def test_a_wrong_setting_is_one_clear_error(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{words}") as refused:
        Fallbacks(settings(**given))
    assert "sk-backup-secret" not in str(refused.value)


def test_they_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIFORGE_ENDPOINTS", json.dumps({"backup": BACKUP}))
    monkeypatch.setenv("AIFORGE_FALLBACKS", '{"*": ["backup/m"]}')
    assert places(Fallbacks(settings()).after(UnavailableError("503"))) == ["backup/m"]
    assert "sk-backup-secret" not in repr(settings())


def test_a_model_is_asked_once_and_the_list_of_the_first_failure_is_walked_to_its_end() -> None:
    lists = {"*": ["a", "b", "a", "backup/a"], "provider_authentication": ["c"]}
    made = fallbacks(lists)
    way = Way(Route(made.after(UnavailableError("503"))[0].model, "openai", "a"), made)
    assert not way.fell_back
    assert way.go_on(UnavailableError("503"))
    assert places([way.route]) == ["openai/b"]
    assert way.go_on(AuthenticationError("401"))
    assert places([way.route]) == ["backup/a"]
    assert way.fell_back
    assert not way.leads_on(UnavailableError("503"))
    assert not way.go_on(UnavailableError("503"))
    assert places([way.route]) == ["backup/a"]


def test_own_prices_belong_to_the_provider_or_name_another() -> None:
    own = {
        "m": {"input": 1, "output": 1},
        "backup/m": {"input": Decimal("2.5"), "output": 3},
    }
    lists = {"*": ["m", "backup/m", "backup/n", "offline/m"]}
    routes = fallbacks(lists, MODELS=own).after(UnavailableError("503"))
    lists_of = [price_list(route.provider, route.model_name, route.prices) for route in routes]
    assert lists_of == ["own", "own", None, "own"]
    assert (routes[1].prices or {})["backup/m"].input == Decimal("2.5")
    assert price_list("openai", "gpt-4o") == PRICE_LIST


@pytest.mark.parametrize(
    "error",
    [
        {"message": "Too big.", "type": "invalid_request_error", "code": "context_length_exceeded"},
        {"message": "This model's maximum context length is 8192 tokens."},
        {"type": "invalid_request_error", "message": "prompt is too long: 210000 tokens > 200000 maximum"},
    ],
)
def test_a_request_beyond_the_window_is_told_from_a_wrong_one(error: dict[str, str]) -> None:
    body = json.dumps({"error": error}).encode()
    told = from_status(400, body, {}, provider="openai", model="m")
    assert (type(told), told.code, told.retryable) == (ContextLengthError, "provider_context_length", False)
    within = from_stream({"type": "invalid_request_error", **error}, provider="openai", model="m")
    assert isinstance(within, ContextLengthError)
    wrong = from_status(400, b'{"error": {"message": "Unknown tool."}}', {}, provider="openai", model="m")
    assert type(wrong) is RequestRefusedError
    assert type(from_status(500, body, {}, provider="openai", model="m")) is UnavailableError
