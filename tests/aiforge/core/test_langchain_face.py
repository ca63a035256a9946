"""Our models as LangChain users know them: invoke, ainvoke, stream, astream, bind_tools."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from aiforge.core.types import RateLimitError, Usage
from aiforge.testing import FakeProvider, Reply, ToolCall, rate_limited
from tests.aiforge.core.support import openai_model

USAGE = Usage(input_tokens=20, output_tokens=7, cached_tokens=12, reasoning_tokens=3)


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(strict=True) as running:
        yield running


def test_ainvoke(provider: FakeProvider) -> None:
    provider.push(Reply(text="Hello!", usage=USAGE))
    message = asyncio.run(openai_model(provider.url).ainvoke("Hi"))
    assert isinstance(message, AIMessage)
    assert message.content == "Hello!"
    assert message.usage_metadata == {
        "input_tokens": 20,
        "output_tokens": 7,
        "total_tokens": 27,
        "input_token_details": {"cache_read": 12, "cache_creation": 0},
        "output_token_details": {"reasoning": 3},
    }
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.response_metadata["model_name"] == "gpt-4o-mini"


def test_all_kinds_of_messages_are_converted(provider: FakeProvider) -> None:
    call = {"name": "weather", "args": {"city": "Rome"}, "id": "call_1", "type": "tool_call"}
    asyncio.run(
        openai_model(provider.url).ainvoke(
            [
                SystemMessage("Be brief."),
                HumanMessage([{"type": "text", "text": "Weather?"}]),
                AIMessage("", tool_calls=[call]),
                ToolMessage("sunny", tool_call_id="call_1"),
            ],
            stop=["END"],
            temperature=0.5,
            max_tokens=5,
            seed=7,
        )
    )
    body = provider.calls[0].body
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert body["messages"][2]["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": '{"city": "Rome"}',
    }
    assert (body["stop"], body["temperature"], body["max_tokens"], body["seed"]) == (["END"], 0.5, 5, 7)


def test_astream(provider: FakeProvider) -> None:
    provider.push(Reply(chunks=["Hel", "lo", "!"], usage=USAGE))

    async def run() -> list[AIMessageChunk]:
        return [chunk async for chunk in openai_model(provider.url).astream("Hi")]

    chunks = asyncio.run(run())
    assert [chunk.content for chunk in chunks if chunk.content] == ["Hel", "lo", "!"]
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert whole.content == "Hello!"
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["total_tokens"] == 27
    assert whole.response_metadata["finish_reason"] == "stop"


@pytest.mark.parametrize("shape", ["interleaved", "same_index"])
def test_bound_tools(provider: FakeProvider, shape: str) -> None:
    calls = [ToolCall("weather", {"city": "Rome"}), ToolCall("weather", {"city": "Oslo"})]
    reply = Reply(tool_calls=calls, tool_shape="same_index" if shape == "same_index" else "interleaved")
    provider.push(reply, reply)
    bound = openai_model(provider.url).bind_tools([weather], tool_choice="any")

    async def run() -> AIMessage:
        whole: AIMessageChunk | None = None
        async for chunk in bound.astream("Weather in Rome and Oslo?"):
            assert isinstance(chunk, AIMessageChunk)
            whole = chunk if whole is None else whole + chunk
        assert whole is not None
        return whole

    streamed = asyncio.run(run())
    invoked = asyncio.run(bound.ainvoke("Weather in Rome and Oslo?"))
    for message in (streamed, invoked):
        assert [(call["name"], call["args"], call["id"]) for call in message.tool_calls] == [
            ("weather", {"city": "Rome"}, "call_1"),
            ("weather", {"city": "Oslo"}, "call_2"),
        ]
    body = provider.calls[0].body
    assert body["tool_choice"] == "required"
    assert body["tools"][0]["function"]["name"] == "weather"
    assert body["tools"][0]["function"]["parameters"]["properties"]["city"]["type"] == "string"


def test_broken_arguments_are_an_invalid_tool_call(provider: FakeProvider) -> None:
    provider.push(Reply(tool_calls=[ToolCall("weather", '{"city": ')]))
    message = asyncio.run(openai_model(provider.url).bind_tools([weather]).ainvoke("Weather?"))
    assert message.tool_calls == []
    assert message.invalid_tool_calls[0]["args"] == '{"city": '


def test_structured_output(provider: FakeProvider) -> None:
    class City(BaseModel):
        """A city."""

        name: str

    provider.push(Reply(tool_calls=[ToolCall("City", {"name": "Rome"})]))
    found = asyncio.run(openai_model(provider.url).with_structured_output(City).ainvoke("Which city?"))
    assert found == City(name="Rome")


def test_invoke_and_stream_without_async(provider: FakeProvider) -> None:
    model = openai_model(provider.url)
    provider.push(Reply(text="Hello!"), Reply(chunks=["a", "b"]))
    assert model.invoke("Hi").content == "Hello!"
    assert [chunk.content for chunk in model.stream("Hi") if chunk.content] == ["a", "b"]


def test_invoke_where_a_loop_runs(provider: FakeProvider) -> None:
    async def notebook() -> object:
        return openai_model(provider.url).invoke("Hi").content

    provider.push(Reply(text="Hello!"))
    assert asyncio.run(notebook()) == "Hello!"


def test_our_errors_come_through(provider: FakeProvider) -> None:
    provider.push(rate_limited(2))
    with pytest.raises(RateLimitError) as caught:
        asyncio.run(openai_model(provider.url).ainvoke("Hi"))
    assert caught.value.retry_after == 2
