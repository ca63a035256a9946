"""Every kind of memory keeps within the model's window, and asks for it only where it can matter."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web

from aiforge import ChatAgent
from aiforge.core import windows
from aiforge.core.once import Once
from aiforge.core.openai_chat.model import OpenAIChat
from aiforge.core.settings import AIForgeSettings
from aiforge.core.tokens import count_messages
from aiforge.core.windows import UNKNOWN, ContextWindow, WindowFinder
from aiforge.modules.chat.budget import HELD_BY_ANY, Budget
from aiforge.testing import check_messages
from tests.aiforge.chat.support import run, until
from tests.aiforge.tools.support import site

NAME = "house-model"
ROUTES = ("/v1/model/info", "/model/info", "/v1/model_group/info", "/model_group/info", "/v1/models")
LARGE = [{"role": "user", "content": "x" * 4 * (HELD_BY_ANY + 1)}]
SMALL = [{"role": "user", "content": "x" * 400}]


class Endpoint:
    """Answers every question alike; says how large its window is, or keeps one waiting for that."""

    def __init__(self, window: int | None, *, hangs: bool = False) -> None:
        self.window = window
        self.hangs = hangs
        self.asked: list[str] = []
        self.requests: list[list[dict[str, Any]]] = []
        self.url = ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            self.requests.append((await request.json())["messages"])
            message = {"role": "assistant", "content": "y" * 400}
            return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})
        self.asked.append(request.path)
        if self.hangs:
            await until(lambda: request.transport is None or request.transport.is_closing())
        if request.path != "/v1/model/info" or self.window is None:
            return web.Response(status=404)
        info = {"model_name": NAME, "model_info": {"max_input_tokens": self.window}}
        return web.json_response({"data": [info]})

    def agent(self, **options: Any) -> ChatAgent:
        given = {"memory_k": 100, "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{self.url}/v1", "MODEL": NAME}
        return ChatAgent("s", **{**given, **options})


@contextmanager
def endpoint(window: int | None, *, hangs: bool = False) -> Iterator[Endpoint]:
    found = Endpoint(window, hangs=hangs)
    with site(found.serve) as url:
        found.url = url
        yield found


def test_buffer_memory_stays_within_a_window_that_the_endpoint_states() -> None:
    with endpoint(2_000) as house:
        agent = house.agent(memory="buffer")
        for number in range(4):
            agent.chat(f"{number} " + "x" * 400)
        assert house.asked == []
        assert agent.context_window == UNKNOWN
        for number in range(4, 20):
            agent.chat(f"{number} " + "x" * 400)
        assert sorted(house.asked) == sorted(ROUTES)
        assert agent.context_window == ContextWindow(2_000, "/model/info")
        for messages in house.requests:
            check_messages(messages, "anthropic")
            assert count_messages(messages) <= 1_800
        assert len(house.requests[-1]) < 20
        assert len(agent.history()) == 40


def test_an_endpoint_is_asked_once_for_all_agents() -> None:
    with endpoint(2_000) as house:

        async def scenario() -> None:
            await asyncio.gather(*(house.agent().achat("x" * 5_000) for _ in range(50)))

        run(scenario())
        house.agent().chat("x" * 5_000)
        assert sorted(house.asked) == sorted(ROUTES)


def test_an_endpoint_that_hangs_costs_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "SECONDS", 0.3)
    with endpoint(None, hangs=True) as house:
        agent = house.agent()
        for _ in range(3):
            assert agent.chat("x" * 5_000).message
        assert house.agent().chat("x" * 5_000).message
        assert sorted(house.asked) == sorted(ROUTES)


def test_what_nobody_knew_is_asked_for_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(None) as house:
        agent = house.agent()
        agent.chat("x" * 5_000)
        house.window = 2_000
        agent.chat("x" * 5_000)
        assert agent.context_window == UNKNOWN
        monkeypatch.setattr(windows, "AGAIN_SECONDS", 1e-6)
        agent.chat("x" * 5_000)
        assert agent.context_window == ContextWindow(2_000, "/model/info")


def test_a_model_in_the_price_list_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a summary, which has to know exactly, goes on to models.dev."""
    with endpoint(None) as catalog:
        monkeypatch.setattr(windows, "MODELS_DEV", f"{catalog.url}/api.json")
        monkeypatch.setattr(windows, "_models_dev", Once())
        monkeypatch.setattr(windows, "_openai_profiles", dict)
        settings = AIForgeSettings.load(OPENAI_API_KEY="k")
        model = OpenAIChat.from_settings(settings, model="gpt-4o")
        finder = WindowFinder(model, provider="openai", model_name="gpt-4o", settings=settings)
        budget = Budget(finder, settings)
        run(budget.look(LARGE, None))
        assert budget.window == ContextWindow(128_000, "price list")
        assert catalog.asked == []
        run(budget.resolve())
        run(budget.resolve())
        assert budget.window == ContextWindow(128_000, "price list")
        assert catalog.asked == ["/api.json"]


def test_a_token_check_asks_nobody() -> None:
    with endpoint(2_000) as house:
        settings = AIForgeSettings.load(OPENAI_API_KEY="k", OPENAI_BASE_URL=f"{house.url}/v1")
        model = OpenAIChat.from_settings(settings, model=NAME)
        finder = WindowFinder(model, provider="openai", model_name=NAME, settings=settings)
        budget = Budget(finder, settings)
        assert budget.fit(LARGE, None, current=0, max_tokens=None) == LARGE
        assert (budget.window, budget.summarize_at) == (UNKNOWN, settings.TOKENS_BEFORE_SUMMARIZE)
        run(budget.look(SMALL, None))
        assert house.asked == []
        run(budget.look(LARGE, None))
        assert budget.window.tokens == 2_000
