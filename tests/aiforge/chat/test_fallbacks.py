"""A `ChatAgent` whose provider fails: provider A answers as `provider`, B is an endpoint of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing

import pytest

from aiforge import (
    AIForgeSettings,
    AuthenticationError,
    ChatAgent,
    ProviderCall,
    StreamCutError,
    UnavailableError,
)
from aiforge.core.events import Event, Message, Reset, Token
from aiforge.core.pricing import PRICE_LIST
from aiforge.core.providers import create_model
from aiforge.testing import Cut, FakeProvider, Reply, ToolCall, failure, rate_limited
from tests.aiforge.chat.support import DuckTool, run

DIES = Reply(chunks=["Half ", "an ", "ans", Cut("reset")])
OWN = {"b/model-b": {"input": 2, "output": 4}}


@pytest.fixture
def backup() -> Iterator[FakeProvider]:
    with FakeProvider(api_key="sk-b") as fake:
        yield fake


def agent(
    provider: FakeProvider, backup: FakeProvider, lists: dict[str, list[str]], **given: object
) -> ChatAgent:
    known = {
        "OPENAI_BASE_URL": provider.url,
        "OPENAI_API_KEY": "sk-a",
        "MODEL": "gpt-4o-mini",
        "MAX_RETRIES": 0,
        "MODELS": OWN,
        "ENDPOINTS": {"b": {"base_url": backup.url, "api_key": "sk-b"}},
        "FALLBACKS": lists,
    }
    return ChatAgent(**{**known, **given})  # type: ignore[arg-type]


def made(calls: list[ProviderCall]) -> list[tuple[str, str, str, str | None]]:
    return [(call.provider, call.model, call.outcome, call.error_code) for call in calls]


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (rate_limited(0.01), "rate_limited"),
        (failure(503), "provider_unavailable"),
        (failure(401), "provider_authentication"),
        (failure(400), "provider_refused"),
        (failure(400, "the context length is exceeded"), "provider_context_length"),
        (Reply(text=""), "provider_empty_answer"),
    ],
)
def test_each_class_of_failure_goes_to_its_route(
    provider: FakeProvider, backup: FakeProvider, reply: Reply, code: str
) -> None:
    provider.push(reply)
    backup.push("B answers.")
    chat = agent(provider, backup, {code: ["b/model-b"]})
    response = chat.chat("Hello?")
    assert (response.message, response.model) == ("B answers.", "model-b")
    assert made(response.calls) == [
        ("openai", "gpt-4o-mini", "error", code),
        ("b", "model-b", "ok", None),
    ]
    assert [call.price_list for call in response.calls] == [PRICE_LIST, "own"]
    assert response.cost == pytest.approx(sum(float(call.cost or 0) for call in response.calls))
    assert response.priced
    (asked,) = backup.calls
    assert asked.model == "model-b"
    other = "provider_timeout" if code != "provider_timeout" else "rate_limited"
    provider.push(reply)
    with pytest.raises(Exception, match=r"openai|empty"):
        agent(provider, backup, {other: ["b/model-b"]}).chat("Hello?")
    assert len(backup.calls) == 1


def test_retries_come_first(provider: FakeProvider, backup: FakeProvider) -> None:
    provider.push(rate_limited(0.01, form="ms"), "A after all.")
    chat = agent(provider, backup, {"*": ["b/model-b"]}, MAX_RETRIES=1)
    assert chat.chat("Hello?").message == "A after all."
    assert not backup.calls


def test_the_list_in_order_and_at_its_end_the_last_error(
    provider: FakeProvider, backup: FakeProvider
) -> None:
    provider.push(failure(503))
    backup.push(failure(401), failure(500, "nobody is left"))
    chat = agent(provider, backup, {"*": ["b/one", "gpt-4o-mini", "b/two"]})
    with pytest.raises(UnavailableError, match="nobody is left"):
        chat.chat("Hello?")
    assert [call.model for call in backup.calls] == ["one", "two"]
    assert len(provider.calls) == 1, "a model that has failed is not asked again"
    backup.push(failure(500), failure(401))
    provider.push(failure(503))
    with pytest.raises(AuthenticationError):
        chat.chat("Hello?")


async def events_of(chat: ChatAgent) -> list[Event]:
    async with aclosing(chat.astream_events("Hello?")) as events:
        return [event async for event in events]


def test_events_take_tokens_back(provider: FakeProvider, backup: FakeProvider) -> None:
    provider.push(DIES)
    backup.push("B from the start.")
    chat = agent(provider, backup, {"*": ["b/model-b"]})
    events = run(events_of(chat))
    at = events.index(Reset(1))
    assert "".join(event.text for event in events[:at] if isinstance(event, Token)) == "Half an ans"
    assert "".join(event.text for event in events[at:] if isinstance(event, Token)) == "B from the start."
    assert events[-1] == Message("B from the start.")
    response = chat.last_response
    assert response is not None
    assert made(response.calls) == [
        ("openai", "gpt-4o-mini", "error", "provider_stream_cut"),
        ("b", "model-b", "ok", None),
    ]
    assert all(call.cost for call in response.calls), "what A said was paid for"


def test_texts_cannot_take_tokens_back(provider: FakeProvider, backup: FakeProvider) -> None:
    provider.push(DIES)
    chat = agent(provider, backup, {"*": ["b/model-b"]})
    texts: list[str] = []
    with pytest.raises(StreamCutError):
        texts.extend(chat.run_stream("Hello?"))
    assert not backup.calls
    provider.push(failure(503))
    backup.push("B before any token.")
    assert "".join(chat.run_stream("Hello?")) == "B before any token."


def test_what_was_seen_of_a_turn_left_after_a_reset_is_the_second_answer(
    provider: FakeProvider, backup: FakeProvider
) -> None:
    provider.push(DIES)
    backup.push(Reply(chunks=["B ", "goes ", "on"], gap=0.01))
    chat = agent(provider, backup, {"*": ["b/model-b"]})

    async def leave() -> None:
        async with aclosing(chat.astream_events("Hello?")) as events:
            reset = False
            async for event in events:
                reset = reset or isinstance(event, Reset)
                if reset and isinstance(event, Token):
                    return

    run(leave())
    provider.push("Again.")
    chat.chat("And?")
    assert [message["content"] for message in provider.calls[-1].messages][1:] == ["Hello?", "B ", "And?"]


def test_the_rest_of_a_turn_with_tools_stays_with_the_model_that_answered(
    provider: FakeProvider, backup: FakeProvider
) -> None:
    """B takes no tools natively, so they are offered to it in words."""
    provider.push(failure(503))
    backup.push('TOOL_CALL: look {"what": "up"}', "It is up.")
    known = {"b": {"base_url": backup.url, "api_key": "sk-b", "minimal": True}}
    tool = DuckTool("look", lambda given: f"saw {given['what']}")
    chat = agent(provider, backup, {"*": ["b/model-b"]}, ENDPOINTS=known, tools=[tool])
    response = chat.chat("Look!")
    assert response.message == "It is up."
    assert [record.output for record in response.tool_calls] == ["saw up"]
    assert (len(provider.calls), len(backup.calls)) == (1, 2)
    assert "tools" in provider.calls[0].body
    assert "tools" not in backup.calls[0].body


def test_a_tool_round_of_the_first_model_is_kept(provider: FakeProvider, backup: FakeProvider) -> None:
    provider.push(Reply(tool_calls=[ToolCall("look", {"what": "up"})]), failure(503))
    backup.push("It is up.")
    tool = DuckTool("look", lambda given: f"saw {given['what']}")
    response = agent(provider, backup, {"*": ["b/model-b"]}, tools=[tool]).chat("Look!")
    assert (response.message, response.model) == ("It is up.", "model-b")
    assert backup.calls[0].messages[-1]["content"] == "saw up"


def test_items_fall_back_and_the_setting_is_no_burden_without_a_failure(
    provider: FakeProvider, backup: FakeProvider
) -> None:
    provider.push(failure(503))
    backup.push("B answers.")
    chat = agent(provider, backup, {"*": ["b/model-b"]})
    result = chat.run_batch(["one", "two"], concurrency=1)
    assert [(response.model, len(response.calls)) for response in result.results] == [
        ("model-b", 2),
        ("gpt-4o-mini", 1),
    ]


def test_a_model_of_ones_own_is_not_given_up_unless_the_setting_says_so(
    provider: FakeProvider, backup: FakeProvider
) -> None:
    settings = AIForgeSettings.load(OPENAI_BASE_URL=provider.url, OPENAI_API_KEY="sk-a")
    given = {
        "llm": create_model(settings),
        "MAX_RETRIES": 0,
        "ENDPOINTS": {"b": {"base_url": backup.url, "api_key": "sk-b"}},
        "FALLBACKS": {"*": ["b/model-b"]},
    }
    provider.push(failure(503), failure(503))
    backup.push("B answers.")
    with pytest.raises(UnavailableError):
        ChatAgent(**given).chat("Hello?")  # type: ignore[arg-type]
    assert ChatAgent(**given, FALLBACK_NAMED=True).chat("Hello?").message == "B answers."  # type: ignore[arg-type]
