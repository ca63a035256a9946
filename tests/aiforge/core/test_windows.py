"""Who says how large a model's context window is, and what happens when nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from langchain_core.language_models import BaseChatModel

from aiforge.core import windows
from aiforge.core.once import Once
from aiforge.core.openai_chat.model import OpenAIChat
from aiforge.core.providers import create_model
from aiforge.core.settings import AIForgeSettings
from aiforge.core.windows import UNKNOWN, ContextWindow, WindowFinder
from aiforge.testing import ScriptedModel
from tests.aiforge.chat.support import run, until

NAME = "my-model"
INFO = {
    "data": [
        {"model_name": NAME, "model_info": {"max_input_tokens": 32_000, "max_tokens": 4_000}},
        {"model_name": NAME, "model_info": {"max_input_tokens": 16_000}},
        {"model_name": NAME, "model_info": {"max_input_tokens": None}},
        {"model_name": NAME, "model_info": {"max_input_tokens": True}},
        {"model_name": "another", "model_info": {"max_input_tokens": 100}},
        "not an object",
    ]
}
GROUP = {"data": [{"model_group": NAME, "max_input_tokens": 24_000.0, "max_output_tokens": 5}]}
MODELS = {"data": [{"id": NAME, "max_model_len": "8192"}, {"id": "another", "context_length": 5}]}
SILENT = "silent"
REFUSED = "refused"
SHORT = 0.7
"""Seconds that stand for the real limit where a source is silent."""


class Gateway:
    """Answers each path with JSON, a 401, or never; knows what it was asked."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []
        self.keys: set[str | None] = set()
        self.url = ""

    async def serve(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        self.keys.add(request.headers.get("Authorization"))
        answer = self.answers.get(request.path)
        if answer is None:
            return web.Response(status=404)
        if answer == REFUSED:
            return web.json_response({"error": {"message": "no", "max_input_tokens": 1}}, status=401)
        if answer == SILENT:
            await asyncio.Event().wait()
        return web.Response(text=answer) if isinstance(answer, str) else web.json_response(answer)


@asynccontextmanager
async def gateway(answers: Mapping[str, Any]) -> AsyncIterator[Gateway]:
    found = Gateway(answers)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.serve)
    with pytest.MonkeyPatch.context() as patch:
        if SILENT in answers.values():
            patch.setattr(windows, "SECONDS", SHORT)
        async with TestServer(app, shutdown_timeout=0.1) as server:
            found.url = str(server.make_url("")).rstrip("/")
            yield found


def finder(model: BaseChatModel, *, name: str = NAME, provider: str = "openai", **given: Any) -> WindowFinder:
    return WindowFinder(model, provider=provider, model_name=name, settings=AIForgeSettings.load(**given))


def ask(answers: Mapping[str, Any], *, base: str = "/v1") -> tuple[ContextWindow, Gateway]:
    """What our own client finds out about `NAME` from an endpoint that answers so."""

    async def scenario() -> tuple[ContextWindow, Gateway]:
        async with gateway(answers) as found:
            settings = AIForgeSettings.load(OPENAI_API_KEY="key", OPENAI_BASE_URL=found.url + base)
            model = OpenAIChat.from_settings(settings, model=NAME)
            search = finder(model)
            assert search.known == UNKNOWN
            window = await search.find()
            count = len(found.asked)
            assert (await search.find(), search.known, len(found.asked)) == (window, window, count)
            await model.aclose()
            return window, found

    return run(scenario())


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize(
    ("path", "answer", "tokens"),
    [("/model/info", INFO, 16_000), ("/model_group/info", GROUP, 24_000), ("/models", MODELS, 8_192)],
)
def test_each_route_of_a_custom_endpoint(prefix: str, path: str, answer: Any, tokens: int) -> None:
    window, found = ask({f"{prefix}{path}": answer}, base=prefix or ("/v1" if path != "/models" else ""))
    assert window == ContextWindow(tokens, path)
    assert found.keys == {"Bearer key"}
    assert len(found.asked) == len(set(found.asked))


def test_the_first_route_that_knows_decides_not_the_first_that_answers() -> None:
    every = {"/v1/model/info": INFO, "/model_group/info": GROUP, "/v1/models": MODELS}
    assert ask(every)[0].source == "/model/info"
    del every["/v1/model/info"]
    assert ask(every)[0].source == "/model_group/info"
    assert ask({"/v1/model/info": INFO, "/model/info": {"data": [INFO["data"][0]]}})[0].tokens == 16_000


@pytest.mark.parametrize("path", ["/v1/model/info", "/model_group/info", "/v1/models"])
@pytest.mark.parametrize(
    "answer",
    [
        SILENT,
        REFUSED,
        "no JSON",
        "[" * 50_000,
        {
            "data": [
                {"model_name": NAME, "model_info": {"max_tokens": 9}},
                {"model_group": NAME},
                {"id": NAME},
            ]
        },
        {
            "data": [
                {"model_name": NAME, "model_info": {"max_input_tokens": 0}},
                {"id": NAME, "context_length": -1},
            ]
        },
        {"data": None},
        [],
        {"data": [{"id": NAME, "context_window": 1e300}]},
    ],
    ids=["silent", "401", "text", "deep", "field missing", "not positive", "no list", "list", "absurd"],
)
def test_a_source_that_does_not_know_leaves_it_to_the_next(path: str, answer: Any) -> None:
    assert ask({path: answer})[0] == UNKNOWN
    others = {"/v1/model/info": INFO, "/model_group/info": GROUP, "/v1/models": MODELS}
    del others[path]
    expected = "/model_group/info" if path == "/v1/model/info" else "/model/info"
    assert ask({path: answer, **others})[0].source == expected


def test_all_routes_silent_take_one_time_limit() -> None:
    paths = ("/v1/model/info", "/model/info", "/v1/model_group/info", "/model_group/info", "/v1/models")

    async def scenario() -> float:
        before = asyncio.get_running_loop().time()
        async with gateway(dict.fromkeys(paths, SILENT)) as found:
            settings = AIForgeSettings.load(OPENAI_API_KEY="key", OPENAI_BASE_URL=f"{found.url}/v1")
            model = OpenAIChat.from_settings(settings, model=NAME)
            assert await finder(model).find() == UNKNOWN
            took = asyncio.get_running_loop().time() - before
            assert sorted(found.asked) == sorted(paths)
            await model.aclose()
            return took

    assert run(scenario()) < len(paths) * SHORT


def test_an_endpoint_that_is_not_there_is_unknown_and_no_error() -> None:
    settings = {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    model = create_model(AIForgeSettings.load(**settings), model="gpt-4o")
    assert run(finder(model, name="gpt-4o").find()) == UNKNOWN


def test_what_the_caller_says_comes_first_and_asks_nobody() -> None:
    settings = {"OPENAI_API_KEY": "key", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    model = create_model(AIForgeSettings.load(**settings), model=NAME)
    said: dict[str, Any] = {"MAX_INPUT_TOKENS": 5_000, "MODELS": {NAME: {"context_window": 6_000}}}
    assert finder(model, **said).known == ContextWindow(5_000, "setting MAX_INPUT_TOKENS")
    del said["MAX_INPUT_TOKENS"]
    assert finder(model, **said).known == ContextWindow(6_000, "setting MODELS")
    profiled = ScriptedModel(profile={"max_input_tokens": 7_000, "max_output_tokens": 1})
    assert finder(profiled).known == ContextWindow(7_000, "profile")
    assert run(finder(ScriptedModel(profile={"max_output_tokens": 1}), provider="custom").find()) == UNKNOWN


def official(name: str) -> OpenAIChat:
    return OpenAIChat.from_settings(AIForgeSettings.load(OPENAI_API_KEY="key"), model=name)


def test_an_official_model_in_langchains_catalog() -> None:
    pytest.importorskip("langchain_openai")
    search = finder(official("gpt-4o"), name="gpt-4o")
    assert search.known == ContextWindow(128_000, "catalog")
    assert run(search.find()) == search.known


def test_many_who_ask_at_once_are_one_search_and_one_who_gives_up_leaves_it_to_the_next() -> None:
    async def scenario() -> None:
        async with gateway({"/v1/models": SILENT}) as found:
            settings = AIForgeSettings.load(OPENAI_API_KEY="key", OPENAI_BASE_URL=f"{found.url}/v1")
            model = OpenAIChat.from_settings(settings, model=NAME)
            search = finder(model)
            first, *others = (asyncio.create_task(search.find()) for _ in range(5))
            await until(lambda: "/v1/models" in found.asked)
            first.cancel()
            found.answers["/v1/models"] = MODELS
            assert await asyncio.gather(*others) == [ContextWindow(8_192, "/models")] * 4
            assert first.cancelled()
            assert found.asked.count("/v1/models") == 2
            await model.aclose()

    run(scenario())


def test_an_official_model_that_only_models_dev_knows_is_asked_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog = {
        "openai": {
            "models": {
                "gpt-new": {"limit": {"context": 400_000, "input": 272_000, "output": 128_000}},
                "gpt-newer": {"limit": {"context": 500_000}},
                "gpt-odd": {"limit": {"output": 5}},
            }
        }
    }

    async def scenario() -> None:
        async with gateway({"/api.json": catalog}) as found:
            monkeypatch.setattr(windows, "MODELS_DEV", f"{found.url}/api.json")
            monkeypatch.setattr(windows, "_models_dev", Once())
            names = ["gpt-new", "gpt-newer", "gpt-odd", "gpt-nowhere"]
            models = [official(name) for name in names]
            searches = [finder(model, name=name).find() for model, name in zip(models, names, strict=True)]
            new, newer, odd, nowhere = await asyncio.gather(*searches)
            assert new == ContextWindow(272_000, "models.dev")
            assert newer == ContextWindow(500_000, "models.dev")
            assert odd.source != "models.dev"
            assert nowhere.source != "models.dev"
            assert found.asked == ["/api.json"]
            assert found.keys == {None}
            for model in models:
                await model.aclose()

    run(scenario())


@pytest.mark.parametrize("answer", [SILENT, REFUSED, "no JSON", {"openai": []}, {}])
def test_without_models_dev_the_price_list_is_the_last_source(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with gateway({"/api.json": answer}) as found:
            monkeypatch.setattr(windows, "MODELS_DEV", f"{found.url}/api.json")
            monkeypatch.setattr(windows, "_models_dev", Once())
            monkeypatch.setattr(windows, "_openai_profiles", dict)
            known, unknown = official("gpt-4o"), official("gpt-nowhere-1")
            assert await finder(known, name="gpt-4o").find() == ContextWindow(128_000, "price list")
            assert await finder(unknown, name="zzz").find() == UNKNOWN
            assert found.asked == ["/api.json"]
            await known.aclose()
            await unknown.aclose()

    run(scenario())


def test_a_langchain_client_is_asked_with_its_own_key() -> None:
    package = pytest.importorskip("langchain_openai")

    async def scenario() -> None:
        async with gateway({"/v1/models": MODELS, "/v1/model/info": SILENT}) as found:
            model = package.ChatOpenAI(model="gpt-4o", base_url=f"{found.url}/v1", api_key="theirs")
            assert model.profile  # the catalogue's, which says nothing of what this endpoint deploys
            assert await finder(model, name="gpt-4o", provider="custom").find() == UNKNOWN
            found.answers["/v1/models"] = {"data": [{"id": "gpt-4o", "context_window": 999}]}
            window = await finder(model, name="gpt-4o", provider="custom").find()
            assert window == ContextWindow(999, "/models")
            assert found.keys == {"Bearer theirs"}
            assert found.asked.count("/v1/models") == 2
            await model.root_async_client.close()

    run(scenario())


SHOWN = {"model_info": {"llama.context_length": 131_072}, "parameters": 'stop "x"\nnum_ctx   4096'}
LOADED = {"models": [{"name": "m:latest", "model": "m:latest", "context_length": 8_192}]}


class TestOllama:
    """Show has what is configured; until a model is loaded nobody knows what it will be given."""

    @staticmethod
    async def ask(
        answers: Mapping[str, Any], later: Mapping[str, Any] | None = None, **fields: Any
    ) -> list[Any]:
        package = pytest.importorskip("langchain_ollama")
        async with gateway(answers) as found:
            model = package.ChatOllama(model="m", base_url=found.url, **fields)
            search = finder(model, name="m", provider="ollama")
            windows_found = [await search.find()]
            if later is not None:
                found.answers.update(later)
                windows_found += [await search.find(), await search.find()]
            await model._async_client.close()
            return [*windows_found, found.asked]

    def test_configured(self) -> None:
        both = {"/api/show": SHOWN, "/api/ps": LOADED}
        assert run(self.ask(both))[0] == ContextWindow(4_096, "/api/show")

    def test_said_by_the_caller(self) -> None:
        window, asked = run(self.ask({"/api/show": SHOWN}, num_ctx=2_048))
        assert (window, asked) == (ContextWindow(2_048, "num_ctx"), [])

    def test_allocated_once_it_is_loaded(self) -> None:
        unloaded = {"/api/show": {"model_info": SHOWN["model_info"]}, "/api/ps": {"models": []}}
        first, second, third, asked = run(self.ask(unloaded, {"/api/ps": LOADED}))
        assert first == UNKNOWN
        assert second == third == ContextWindow(8_192, "/api/ps")
        assert len(asked) == 4

    @pytest.mark.parametrize(
        "answer", [SILENT, REFUSED, "no JSON", {}], ids=["silent", "401", "text", "empty"]
    )
    def test_neither_knows(self, answer: Any) -> None:
        assert run(self.ask({"/api/show": answer, "/api/ps": answer}))[0] == UNKNOWN
        assert run(self.ask({"/api/show": answer, "/api/ps": LOADED}))[0].source == "/api/ps"
        assert run(self.ask({"/api/show": SHOWN, "/api/ps": answer}))[0].source == "/api/show"
