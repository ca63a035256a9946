"""LangChain's packages behind our face: Anthropic and Ollama on local servers that speak their formats."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGenerationChunk
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from aiforge import ChatAgent, MemoryStore
from aiforge.core.deltas import CallParams, FinishDelta, TextDelta, assemble
from aiforge.core.foreign_chat import ForeignChat
from aiforge.core.foreign_errors import translated
from aiforge.core.providers import create_model
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import (
    APITimeoutError,
    AuthenticationError,
    ConfigError,
    ProviderError,
    RateLimitError,
    RequestRefusedError,
    UnavailableError,
    Usage,
)
from aiforge.testing import FakeProvider, Gate, Reply, ScriptedModel, ToolCall, rate_limited
from tests.aiforge.chat.support import until
from tests.aiforge.core.support import HELLO, KEY, WEATHER, ask, hear

Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
Asked = list[tuple[web.Request, dict[str, Any]]]


@pytest.fixture(autouse=True)
def _clients_of_others() -> Iterator[None]:
    """These packages never close their HTTP clients; what that leaves behind is collected here."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@asynccontextmanager
async def serving(path: str, answer: Answer) -> AsyncIterator[tuple[str, Asked]]:
    """A server whose `path` answers; yields its address and what it was asked."""
    asked: Asked = []

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        asked.append((request, body))
        return await answer(request, body)

    app = web.Application()
    app.router.add_post(path, handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


def anthropic_events(stop: str = "end_turn", *blocks: dict[str, Any]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "claude-test",
                "content": [],
                "stop_reason": None,
                "stop_sequence": None,
                "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 1},
            },
        }
    ]
    for index, block in enumerate(blocks):
        start: dict[str, Any]
        if block["type"] == "text":
            start = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": part} for part in block["parts"]]
        else:
            start = {"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in block["parts"]]
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events.append(
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {
                "input_tokens": 10,
                "cache_read_input_tokens": 5,
                "cache_creation_input_tokens": 2,
                "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 0},
                "output_tokens": 9,
            },
        }
    )
    events.append({"type": "message_stop"})
    return events


async def send_events(request: web.Request, events: list[dict[str, Any]]) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await reply.prepare(request)
    for item in events:
        await reply.write(f"event: {item['type']}\ndata: {json.dumps(item)}\n\n".encode())
    return reply


def anthropic(url: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> ForeignChat:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
    loaded = AIForgeSettings.load(PROVIDER="anthropic", MODEL="claude-test", **settings)
    model = create_model(loaded)
    assert isinstance(model, ForeignChat)
    return model


def test_anthropic_streams_text_and_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    events = anthropic_events(
        "tool_use",
        {"type": "text", "parts": ["Let me", " look."]},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "parts": ['{"city"', ': "Rome"}']},
        {"type": "tool_use", "id": "toolu_2", "name": "weather", "parts": ['{"city": "Oslo"}']},
    )

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return await send_events(request, events)

    async def run() -> None:
        async with serving("/v1/messages", answer) as (url, asked):
            params = CallParams(temperature=0.25, max_tokens=77, stop=["END"])
            heard = await hear(anthropic(url, monkeypatch), tools=[WEATHER], params=params, call_id="call-9")
            assert heard.error is None
            assert [item for item in heard.deltas if isinstance(item, TextDelta)] == [
                TextDelta("Let me"),
                TextDelta(" look."),
            ]
            assert [(call.id, call.name, call.arguments) for call in assemble(heard.pieces)] == [
                ("toolu_1", "weather", '{"city": "Rome"}'),
                ("toolu_2", "weather", '{"city": "Oslo"}'),
            ]
            assert heard.usages == [
                Usage(input_tokens=17, output_tokens=9, cached_tokens=5, cache_write_tokens=2)
            ]
            assert heard.deltas[-1] == FinishDelta("tool_calls")
            request, body = asked[0]
            assert request.headers["x-aiforge-call-id"] == "call-9"
            assert (body["temperature"], body["max_tokens"]) == (0.25, 77)
            assert body["stop_sequences"] == ["END"]
            assert body["tools"][0]["name"] == "weather"

    asyncio.run(run())


def test_anthropic_answers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert not body.get("stream")
        return web.json_response(
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": "claude-test-1",
                "content": [
                    {"type": "text", "text": "Hello!"},
                    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Rome"}},
                ],
                "stop_reason": "tool_use",
                "usage": {"input_tokens": 10, "output_tokens": 9},
            }
        )

    async def run() -> None:
        async with serving("/v1/messages", answer) as (url, _):
            found = await ask(anthropic(url, monkeypatch), tools=[WEATHER])
            assert found.text == "Hello!"
            assert [(call.id, call.arguments) for call in found.tool_calls] == [
                ("toolu_1", '{"city":"Rome"}')
            ]
            assert found.usage == Usage(input_tokens=10, output_tokens=9)
            assert found.finish_reason == "tool_calls"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "cls", "retryable"),
    [
        (400, RequestRefusedError, False),
        (401, AuthenticationError, False),
        (404, RequestRefusedError, False),
        (429, RateLimitError, True),
        (500, UnavailableError, True),
        (529, UnavailableError, True),
    ],
)
def test_anthropic_refuses(
    monkeypatch: pytest.MonkeyPatch, status: int, cls: type[ProviderError], retryable: bool
) -> None:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        error = {"type": "error", "error": {"type": "some_error", "message": f"said of {KEY}"}}
        return web.json_response(error, status=status, headers={"retry-after": "3"})

    async def run() -> list[ProviderError]:
        async with serving("/v1/messages", answer) as (url, asked):
            model = anthropic(url, monkeypatch)
            heard = await hear(model)
            with pytest.raises(ProviderError) as caught:
                await ask(model)
            assert len(asked) == 2, "nothing is repeated"
            assert heard.error is not None
            return [heard.error, caught.value]

    for error in asyncio.run(run()):
        assert type(error) is cls
        assert (error.status, error.retryable, error.retry_after) == (status, retryable, 3)
        assert error.model == "claude-test"
        assert "said of ***" in str(error)


def test_anthropic_reports_an_error_inside_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    events = anthropic_events("end_turn", {"type": "text", "parts": ["one"]})[:3]
    events.append({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})

    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return await send_events(request, events)

    async def run() -> None:
        async with serving("/v1/messages", answer) as (url, _):
            heard = await hear(anthropic(url, monkeypatch))
            assert heard.text == "one"
            assert type(heard.error) is UnavailableError
            assert "Overloaded" in str(heard.error)

    asyncio.run(run())


@pytest.mark.parametrize(("events", "first", "between"), [(0, 0.4, 9.0), (3, 9.0, 0.4)])
def test_anthropic_is_silent(
    monkeypatch: pytest.MonkeyPatch, events: int, first: float, between: float
) -> None:
    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        said = anthropic_events("end_turn", {"type": "text", "parts": ["one"]})
        reply = await send_events(request, said[:events])
        await asyncio.Event().wait()
        return reply

    async def run() -> None:
        async with serving("/v1/messages", answer) as (url, _):
            model = anthropic(url, monkeypatch, FIRST_TOKEN_TIMEOUT=first, TOKEN_TIMEOUT=between)
            heard = await hear(model)
            assert isinstance(heard.error, APITimeoutError)
            assert "no token within 0.4 s" in str(heard.error)

    asyncio.run(run())


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(asyncio.run(hear(anthropic("http://127.0.0.1:1", monkeypatch))).error) is UnavailableError
    ollama = ChatOllama(model="llama3", base_url="http://127.0.0.1:1")
    error = asyncio.run(hear(ollama)).error
    assert type(error) is UnavailableError
    assert error.retryable


def test_ollama() -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
        await reply.prepare(request)
        said: list[dict[str, Any]] = [
            {"message": {"role": "assistant", "content": "Hel"}, "done": False},
            {"message": {"role": "assistant", "content": "lo"}, "done": False},
            {
                "message": {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}],
                },
                "done": False,
            },
            {
                "message": {"role": "assistant", "content": ""},
                "done": True,
                "done_reason": "stop",
                "prompt_eval_count": 4,
                "eval_count": 2,
            },
        ]
        for line in said:
            await reply.write(
                json.dumps({"model": "llama3", "created_at": "2025-01-01T00:00:00Z", **line}).encode() + b"\n"
            )
        return reply

    async def run() -> None:
        async with serving("/api/chat", answer) as (url, asked):
            model = ChatOllama(model="llama3", base_url=url)
            heard = await hear(model, tools=[WEATHER], params=CallParams(temperature=0.25, max_tokens=77))
            assert (heard.text, heard.error) == ("Hello", None)
            assert [(call.name, json.loads(call.arguments)) for call in assemble(heard.pieces)] == [
                ("weather", {"city": "Rome"})
            ]
            assert heard.usages == [Usage(input_tokens=4, output_tokens=2)]
            options = asked[0][1]["options"]
            assert (options["temperature"], options["num_predict"]) == (0.25, 77)

    asyncio.run(run())


def test_ollama_refuses() -> None:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": "model 'llama3' not found"}, status=404)

    async def run() -> None:
        async with serving("/api/chat", answer) as (url, _):
            heard = await hear(ChatOllama(model="llama3", base_url=url))
            assert type(heard.error) is RequestRefusedError
            assert "not found" in str(heard.error)

    asyncio.run(run())


def test_any_langchain_model() -> None:
    model = ScriptedModel(replies=["Hello!", ToolCall("weather", {"city": "Rome"}), AIMessage("Bye.")])
    heard = asyncio.run(hear(model))
    assert heard.text == "Hello!"
    called = asyncio.run(hear(model, tools=[WEATHER]))
    assert [(call.name, json.loads(call.arguments)) for call in assemble(called.pieces)] == [
        ("weather", {"city": "Rome"})
    ]
    assert called.deltas[-1] == FinishDelta("tool_calls")
    assert asyncio.run(ask(model)).text == "Bye."
    assert model.requests[0]["messages"] == HELLO


def test_our_own_errors_pass_and_others_are_named() -> None:
    limited = RateLimitError("slow down", retry_after=2)
    model = ScriptedModel(replies=[limited, ZeroDivisionError("oops")])
    assert asyncio.run(hear(model)).error is limited
    with pytest.raises(ProviderError, match=r"oops \(ZeroDivisionError\)") as caught:
        asyncio.run(ask(model))
    assert not caught.value.retryable


def test_a_model_without_tools() -> None:
    class Plain(ScriptedModel):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(ConfigError, match="takes no tools"):
        asyncio.run(ask(Plain(replies=["x"]), tools=[WEATHER]))


def test_the_face_of_a_foreign_model() -> None:
    model = ForeignChat(model_name="scripted", inner=ScriptedModel(replies=["Hello!"]))
    assert asyncio.run(model.ainvoke("Hi")).content == "Hello!"
    assert model._llm_type == "scripted"


@pytest.mark.parametrize(
    ("error", "cls"),
    [
        (TimeoutError(), APITimeoutError),
        (ConnectionResetError("gone"), UnavailableError),
        (type("EndpointConnectionError", (Exception,), {})("no"), UnavailableError),
        (type("NoCredentialsError", (Exception,), {})("none"), AuthenticationError),
        (ValueError("Did not find api_key"), AuthenticationError),
        (ValueError("something"), ProviderError),
    ],
)
def test_errors_without_a_status(error: Exception, cls: type[ProviderError]) -> None:
    found = translated(error, provider="p", model="m")
    assert type(found) is cls
    assert (found.provider, found.model) == ("p", "m")


def open_ai(provider: FakeProvider) -> ChatOpenAI:
    return ChatOpenAI(model="gpt-4o-mini", base_url=provider.url, api_key=SecretStr("key"))


def test_a_package_s_model_works_from_every_loop_and_thread() -> None:
    with FakeProvider() as provider:
        agents = [ChatAgent(llm=open_ai(provider)) for _ in range(2)]

        async def stream(agent: ChatAgent) -> str:
            return "".join([text async for text in agent.chat_stream("Hello")])

        for agent in agents:
            assert asyncio.run(agent.achat("a")).message
            assert agent.chat("b").message
            assert asyncio.run(stream(agent))
            assert "".join(agent.run_stream("c"))
            assert asyncio.run(agent.achat("d")).message
        assert [call.status for call in provider.calls] == [200] * 10


def test_leaving_a_package_s_stream_closes_its_connection() -> None:
    with FakeProvider() as provider:
        provider.push(Reply(chunks=["one", " two", Gate("never")]))
        agent = ChatAgent(llm=open_ai(provider))

        async def scenario() -> None:
            async with aclosing(agent.chat_stream("Tell me.")) as texts:
                assert await anext(texts) == "one"
            await until(lambda: provider.calls.running == 0)

        asyncio.run(scenario())
        provider.push(Reply(instead="silence"))

        async def cancelled() -> None:
            task = asyncio.create_task(agent.achat("Hello"))
            await until(lambda: len(provider.calls) == 2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: provider.calls.running == 0)

        asyncio.run(cancelled())


def test_the_packages_own_retries_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiforge.core.retry.JITTER", 0.0)
    with FakeProvider() as provider:
        provider.push(*[rate_limited(0.001)] * 20)
        agent = ChatAgent(llm=open_ai(provider), MAX_RETRIES=2)
        with pytest.raises(RateLimitError):
            agent.chat("Hello")
        with pytest.raises(RateLimitError):
            list(agent.run_stream("Hello"))
        assert len(provider.calls) == 6


def test_a_model_of_one_s_own_stays_on_the_loop_that_calls_it() -> None:
    seen: list[asyncio.AbstractEventLoop] = []

    class Own(ScriptedModel):
        async def _agenerate(self, *args: Any, **options: Any) -> Any:
            seen.append(asyncio.get_running_loop())
            return await super()._agenerate(*args, **options)

    async def scenario() -> None:
        await ChatAgent(llm=Own(replies=["ok"])).achat("Hello")
        assert seen == [asyncio.get_running_loop()]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("said", "usage"),
    [("", Usage(70, 1, 5)), ("some words that nobody counted", Usage(70, 8, 5, estimated=True))],
)
def test_what_was_reported_before_a_failure_is_not_forgotten(said: str, usage: Usage) -> None:
    """Some providers report the input with the first event, and the answer with the last."""

    class Breaking(ScriptedModel):
        async def _astream(self, *_: Any, **__: Any) -> AsyncIterator[ChatGenerationChunk]:
            reported = UsageMetadata(
                input_tokens=70, output_tokens=1, total_tokens=71, input_token_details={"cache_read": 5}
            )
            yield ChatGenerationChunk(message=AIMessageChunk(content=said, usage_metadata=reported))
            raise ConnectionResetError("gone")

    heard = asyncio.run(hear(Breaking(replies=["never"])))
    assert isinstance(heard.error, UnavailableError)
    assert heard.usages == [usage]


@pytest.mark.parametrize(("read", "written"), [(-5, 3), (5, -3), (10**12, 3)])
def test_usage_that_cannot_be_is_not_believed(read: int, written: int) -> None:
    usage = UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=1)
    said = AIMessage("fine", usage_metadata=usage)
    response = ChatAgent(llm=ScriptedModel(replies=[said])).chat("Hello")
    assert response.calls[0].usage.estimated
    assert response.input_tokens > 0
    assert response.output_tokens == 1


def test_half_a_surrogate_pair_in_an_answer_can_be_stored_and_sent() -> None:
    agent = ChatAgent(llm=ScriptedModel(replies=["a\ud800b", "ok"]), store=MemoryStore())
    assert agent.chat("Hello").message == "a?b"
    agent.chat("Again.").model_dump_json()
