"""The scripted model behaves as LangChain's own models do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from aiforge.core.types import RateLimitError, Usage
from aiforge.testing import NoReplyLeft, ScriptedModel, ToolCall, check_messages


def summed(chunks: list[Any]) -> AIMessageChunk:
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert isinstance(whole, AIMessageChunk)
    return whole


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_replies_come_in_order_whole_and_streamed() -> None:
    model = ScriptedModel(replies=["Hello there.", "Good bye."])
    assert model.invoke("hi").content == "Hello there."
    chunks = [chunk.content for chunk in model.stream("hi") if chunk.content]
    assert chunks == ["Good", " bye."]
    with pytest.raises(NoReplyLeft, match="call 3, but 2 replies"):
        model.invoke("hi")


def test_a_text_may_repeat() -> None:
    model = ScriptedModel(replies=["a", "b"], repeat_last=True)
    assert [model.invoke("x").content for _ in range(4)] == ["a", "b", "b", "b"]


def test_tool_calls_arrive_in_fragments_and_whole() -> None:
    calls: list[Any] = [ToolCall("add", {"a": 1, "b": 2}), ToolCall("add", {"a": 3, "b": 4})]
    model = ScriptedModel(replies=[calls, ["Let me ", "see.", *calls], ToolCall("add", "{broken")])
    whole = model.invoke("x")
    assert isinstance(whole, AIMessage)
    assert [(call["name"], call["args"], call["id"]) for call in whole.tool_calls] == [
        ("add", {"a": 1, "b": 2}, "call_1"),
        ("add", {"a": 3, "b": 4}, "call_2"),
    ]
    assert whole.response_metadata["finish_reason"] == "tool_calls"
    chunks = list(model.stream("x"))
    assert len(chunks) > 6
    assert summed(chunks).content == "Let me see."
    assert summed(chunks).tool_calls == whole.tool_calls
    broken = model.invoke("x")
    assert isinstance(broken, AIMessage)
    assert broken.tool_calls == []
    assert broken.invalid_tool_calls[0]["args"] == "{broken"


def test_exceptions_are_raised_before_and_within_a_stream() -> None:
    model = ScriptedModel(replies=[RateLimitError("slow down"), ["a", "b", RateLimitError("cut")]])
    with pytest.raises(RateLimitError, match="slow down"):
        model.invoke("x")
    stream = model.stream("x")
    assert [next(stream).content, next(stream).content] == ["a", "b"]
    with pytest.raises(RateLimitError, match="cut"):
        next(stream)


def test_async_streams_and_calls() -> None:
    async def main() -> None:
        model = ScriptedModel(replies=["one two", "three"])
        assert summed([chunk async for chunk in model.astream("x")]).content == "one two"
        assert (await model.ainvoke("x")).content == "three"

    asyncio.run(main())


def test_usage_is_counted_or_given_and_reported_once() -> None:
    counted = ScriptedModel(replies=["one two three"])
    assert summed(list(counted.stream("12345678"))).usage_metadata == {
        "input_tokens": 6,
        "output_tokens": 3,
        "total_tokens": 9,
        "input_token_details": {"cache_read": 0, "cache_creation": 0},
        "output_token_details": {"reasoning": 0},
    }
    given = ScriptedModel(replies=["x"], usage=Usage(100, 7, cached_tokens=40))
    message = given.invoke("x")
    assert isinstance(message, AIMessage)
    assert message.usage_metadata is not None
    assert message.usage_metadata["input_token_details"]["cache_read"] == 40


def test_requests_are_recorded_in_openai_form_with_bound_tools() -> None:
    model = ScriptedModel(replies=[ToolCall("add", {"a": 1, "b": 2}), "3"])
    bound = model.bind_tools([add], tool_choice="auto")
    history: list[BaseMessage] = [HumanMessage("1 + 2?")]
    asked = bound.invoke(history)
    bound.invoke([*history, asked, ToolMessage("3", tool_call_id="call_1")])
    first, second = model.requests
    assert first["tools"][0]["function"]["name"] == "add"
    assert first["tool_choice"] == "auto"
    assert first["messages"] == [{"role": "user", "content": "1 + 2?"}]
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool"]
    check_messages(second["messages"])


def test_functions_and_whole_messages_are_replies_too() -> None:
    def shout(messages: list[BaseMessage]) -> str:
        return messages[-1].text.upper()

    whole = AIMessage("as it is", response_metadata={"finish_reason": "length"})
    model = ScriptedModel(replies=[shout, whole, whole])
    assert model.invoke("hello").content == "HELLO"
    assert model.invoke("x").response_metadata["finish_reason"] == "length"
    assert summed(list(model.stream("x"))).content == "as it is"
