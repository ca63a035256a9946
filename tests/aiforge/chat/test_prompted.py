"""Tools in words: what counts as a call, what the model is sent, what a reader of the stream sees."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel

from aiforge.core.events import Preamble, Token, ToolResult
from aiforge.core.providers import create_model
from aiforge.core.settings import AIForgeSettings
from aiforge.modules.chat.prompted import Held, in_words, read_reply, takes_tools, with_instructions
from aiforge.modules.chat.prompts import LIMIT_ANSWER
from aiforge.testing import FakeProvider, ScriptedModel, ToolCall, check_messages
from tests.aiforge.chat.support import DuckTool, Turn, run


def schema(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": {}}}


SCHEMAS = [schema("add"), schema("my.tool-2"), schema("now")]

CALLS = {
    "marked": ('TOOL_CALL: f {"a":{"b":1},"c":"x } y"}', [("f", {"a": {"b": 1}, "c": "x } y"})]),
    "marked, then text": ('TOOL_CALL: f {"a": "}"}\nThe result is 4.', [("f", {"a": "}"})]),
    "marked twice": (
        'TOOL_CALL: add {"a": 1}\nTOOL_CALL: my.tool-2 {}',
        [("add", {"a": 1}), ("my.tool-2", {})],
    ),
    "marked, fenced": ('```\nTOOL_CALL: add {"a": 1}\n```', [("add", {"a": 1})]),
    "object": ('{"tool": "add", "input": {"a": [1, {"b": "\\"}"}]}}', [("add", {"a": [1, {"b": '"}'}]})]),
    "fenced": ('```json\n{"tool": "add", "input": {"a": 1}}\n```', [("add", {"a": 1})]),
    "lines": (
        '{"tool": "add", "input": {"a": 1}}\n{"tool": "my.tool-2", "input": {}}',
        [("add", {"a": 1}), ("my.tool-2", {})],
    ),
    "list": ('[{"tool": "add", "input": {}}, {"tool": "add", "input": {}}]', [("add", {}), ("add", {})]),
    "unknown tool": ('{"tool": "not there", "input": {}}', [("not there", {})]),
    "no input": ('{"tool": "now"}', [("now", {})]),
}

ANSWERS = {
    "explanation": 'Write this:\n```json\n{"tool": "add", "input": {"a": 1}}\n```\nand wait.',
    "explanation of the other form": 'You write\n```\nTOOL_CALL: add {"a": 1}\n```',
    "two examples": '```\n{"tool": "add", "input": {}}\n```\nor\n```\n{"tool": "add", "input": {}}\n```',
    "named in a sentence": 'I would use TOOL_CALL: add {"a": 1} here.',
    "object with text": '{"tool": "add", "input": {}} is how it is done.',
    "another object": '{"tool": "hammer", "price": 3}',
    "no input and unknown": '{"tool": "hammer"}',
    "a list of data": '[{"tool": "add", "input": {}}, {"price": 3}]',
    "an empty list": "[]",
    "broken": '{"tool": "add", "input": {',
    "deep": "[" * 100_000,
    "half a surrogate": '{"tool": "\\ud800", "input": {}}',
    "words": "Hello.",
    "nothing": "",
}


@pytest.mark.parametrize("case", CALLS)
def test_a_reply_that_is_a_call(case: str) -> None:
    text, expected = CALLS[case]
    calls, words = read_reply(f"\n {text}\n", SCHEMAS)
    assert [(call.name, json.loads(call.arguments)) for call in calls] == expected
    assert len({call.id for call in calls}) == len(calls)
    assert read_reply(words, SCHEMAS)[0] == calls


@pytest.mark.parametrize("case", ANSWERS)
def test_a_reply_that_is_an_answer(case: str) -> None:
    assert read_reply(ANSWERS[case], SCHEMAS)[0] == []


@given(
    arguments=st.dictionaries(
        st.text(), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=8), max_size=4
    ),
    name=st.from_regex(r"[A-Za-z][\w.-]{0,20}", fullmatch=True),
    marked=st.booleans(),
)
def test_arguments_arrive_exactly(arguments: dict[str, Any], name: str, marked: bool) -> None:
    text = json.dumps(arguments)
    reply = f"TOOL_CALL: {name} {text} And so on." if marked else f'{{"tool": "{name}", "input": {text}}}'
    ((call,), _) = read_reply(reply, [])
    assert (call.name, json.loads(call.arguments)) == (name, arguments)


@given(st.sampled_from([text for text, _ in CALLS.values()]), st.integers(1, 9))
def test_a_call_is_held_back(text: str, size: int) -> None:
    given_out: list[str] = []
    held = Held(given_out.append)
    for start in range(0, len(text), size):
        held.add(text[start : start + size])
    assert given_out == []


@given(st.text(max_size=80) | st.sampled_from(sorted(ANSWERS.values())), st.integers(1, 9))
def test_an_answer_is_given_out_whole(text: str, size: int) -> None:
    given_out: list[str] = []
    held = Held(given_out.append)
    for start in range(0, len(text), size):
        held.add(text[start : start + size])
    held.release()
    assert "".join(given_out) == text


@pytest.mark.parametrize("text", ["Hello", "```python\nprint()", "[link](x)", '{"a": 1}', "{x"])
def test_an_answer_is_not_held_for_long(text: str) -> None:
    given_out: list[str] = []
    held = Held(given_out.append)
    for character in text:
        held.add(character)
    assert "".join(given_out) == text


def test_native_messages_are_put_into_words_with_every_turn_kept() -> None:
    function = {"name": "my_tool-2", "arguments": '{"a": 1}'}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "system", "content": "Summary."},
        {"role": "user", "content": "one"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"id": "x", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "x", "content": "R </result> S"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
    ]

    said = in_words(messages, SCHEMAS, last=False)

    assert [message["role"] for message in said] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert "Be kind.\n\nSummary.\n\n" in said[0]["content"]
    assert "my.tool-2: Does it." in said[0]["content"]
    assert json.loads(said[2]["content"]) == {"tool": "my.tool-2", "input": {"a": 1}}
    assert '<result tool="my.tool-2">\nR <\\/result> S\n</result>' in said[3]["content"]
    assert all(message.keys() == {"role", "content"} for message in said)
    check_messages(said, "anthropic")
    assert in_words(messages, [], last=False)[0]["content"] == "Be kind.\n\nSummary."


def test_instructions_are_added_only_where_there_are_tools() -> None:
    assert with_instructions("Be kind.", []) == "Be kind."
    assert with_instructions("", SCHEMAS).startswith("You can use these tools")


def add(arguments: dict[str, Any]) -> str:
    return str(arguments["a"] + arguments["b"])


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_minimal_endpoint_gets_a_turn_with_tools_in_words(stream: bool) -> None:
    calls = '{"tool": "my.add", "input": {"a": 2, "b": 3}}\n{"tool": "nothing", "input": {}}'
    history = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    with FakeProvider(calls, "It is 5.", strict=True) as provider:
        settings = {
            "OPENAI_BASE_URL": provider.url,
            "OPENAI_API_KEY": "key",
            "MINIMAL_ENDPOINT": True,
            "TEMPERATURE": 0.5,
        }
        model = create_model(AIForgeSettings.load(**settings))
        turn = Turn(
            model,
            tools=[DuckTool("my.add", add)],
            native_tools=takes_tools(model),
            history=history,
            settings=settings,
            stream=stream,
        )
        result = run(turn.run())
        first, second = (json.loads(call.raw) for call in provider.calls)

    assert result.answer == "It is 5."
    assert next((record.tool, record.output) for record in result.tool_calls) == ("my.add", "5")
    assert {event.name: event.ok for event in turn.of(ToolResult)} == {"my.add": True, "nothing": False}
    assert "".join(token.text for token in turn.of(Token)) == ("It is 5." if stream else "")
    assert turn.of(Preamble) == []
    assert first.keys() <= {"model", "messages", "stream", "temperature", "max_tokens", "stop"}
    assert [message["role"] for message in first["messages"]] == ["system", "user", "assistant", "user"]
    assert [message["role"] for message in second["messages"]][-2:] == ["assistant", "user"]
    assert second["messages"][-2]["content"] == calls
    assert "there is no tool 'nothing'" in second["messages"][-1]["content"]
    assert [message["role"] for message in result.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert [call.purpose for call in result.calls] == ["tool_round", "answer"]
    check_messages([*result.messages, {"role": "user", "content": "next"}], "anthropic")


def test_bad_arguments_become_a_result_for_the_model() -> None:
    model = ScriptedModel(replies=['TOOL_CALL: f {"a": oops}', '{"tool": "f", "input": [1]}', "Sorry."])
    turn = Turn(model, tools=[DuckTool("f", str)], native_tools=False)
    assert run(turn.run()).answer == "Sorry."
    assert ["JSON" in event.output and not event.ok for event in turn.of(ToolResult)] == [True, True]
    for request in model.requests:
        assert "tools" not in request
        check_messages(request["messages"], "anthropic")


def test_at_the_cap_a_call_is_no_answer() -> None:
    model = ScriptedModel(replies=['{"tool": "f", "input": {}}'], repeat_last=True)
    turn = Turn(model, tools=[DuckTool("f", str)], native_tools=False, max_tool_iterations=1)
    result = run(turn.run())
    assert (result.answer, result.iteration_limit) == (LIMIT_ANSWER, True)
    assert "".join(token.text for token in turn.of(Token)) == LIMIT_ANSWER
    assert "no more tools" in model.requests[-1]["messages"][-1]["content"]
    assert "You can use these tools" not in model.requests[-1]["messages"][0]["content"]


def test_without_tools_json_is_an_answer() -> None:
    text = '{"tool": "add", "input": {}}'
    turn = Turn(ScriptedModel(replies=[text]), native_tools=False)
    assert run(turn.run()).answer == text


def test_which_models_take_tools() -> None:
    assert takes_tools(ScriptedModel())
    assert not takes_tools(_NoTools())
    ask = AIForgeSettings.load
    assert takes_tools(create_model(ask(PROVIDER="offline")))
    assert takes_tools(create_model(ask(OPENAI_API_KEY="k")))
    assert not takes_tools(create_model(ask(OPENAI_API_KEY="k", MINIMAL_ENDPOINT=True)))


def test_a_model_without_tool_calling_uses_them_in_words() -> None:
    model = _NoTools(replies=['TOOL_CALL: f {"a": 1}', "Done."])
    turn = Turn(model, tools=[DuckTool("f", str)], native_tools=takes_tools(model))
    assert run(turn.run()).tool_calls[0].output == "{'a': 1}"


class _NoTools(ScriptedModel):
    """LangChain's own way of saying that there is no tool calling."""


_NoTools.bind_tools = BaseChatModel.bind_tools  # type: ignore[method-assign]  # as if it had none


def test_a_call_by_name_that_no_provider_takes_is_kept_valid() -> None:
    model = ScriptedModel(replies=[[ToolCall("a b")], "Done."])
    turn = Turn(model, tools=[DuckTool("f", str)])
    check_messages(run(turn.run()).messages, "anthropic")
