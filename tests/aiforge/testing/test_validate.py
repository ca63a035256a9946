"""Each rule for message lists, by one list that keeps it and lists that break it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiforge.testing import MessageListError, check_messages

USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Hello."}


def asks(*ids: str, **more: Any) -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def result(call_id: str, content: Any = "1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def call_with(**fields: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"} | fields
    return asks() | {"tool_calls": [{"id": "a", "type": "function", "function": function}]}


GOOD: list[list[dict[str, Any]]] = [
    [USER],
    [SYSTEM],
    [SYSTEM, USER, ANSWER, USER],
    [USER, asks("a", "b"), result("b"), result("a", ""), ANSWER, USER],
    [USER, asks("a"), result("a"), asks("a"), result("a")],
    [USER, asks("a", content=""), result("a", [{"type": "text", "text": "x"}])],
    [{"role": "developer", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "x"}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
    [USER, ANSWER, SYSTEM, USER],
    [USER, USER],
]

BAD: list[tuple[list[Any], str]] = [
    ([], "the list is empty"),
    (["hi"], r"messages\[0\]: is str"),
    ([{"role": "bot", "content": "x"}], "role 'bot' is none of"),
    ([{**USER, "turn_id": "1"}], "no field 'turn_id'"),
    ([{"role": "user", "content": ""}], "content of role user is empty"),
    ([{"role": "user"}], "not NoneType"),
    ([{"role": "user", "content": []}], "no parts"),
    ([{"role": "user", "content": [{"type": "text", "text": ""}]}], "part of type text is empty"),
    ([{"role": "system", "content": [{"type": "image_url"}]}], "no parts of type 'image_url'"),
    ([USER, {"role": "assistant", "content": None}], "not NoneType"),
    ([USER, {"role": "assistant", "content": ""}], "content of role assistant is empty"),
    ([ANSWER], "first message is of role assistant"),
    ([SYSTEM, result("a")], "first message is of role tool"),
    ([USER, result("a")], "answers no call"),
    ([USER, asks("a"), result("b")], "answers no call"),
    ([USER, asks("a"), result("a"), result("a")], "answers no call"),
    ([USER, asks("a"), result("a"), ANSWER, result("a")], "answers no call"),
    ([USER, asks("a", "b"), result("a"), ANSWER], "'b' has no result before another message"),
    ([USER, asks("a"), USER, result("a")], "'a' has no result before another message"),
    ([USER, asks("a")], "'a' has no result before the end"),
    ([USER, asks()], "at least one call"),
    ([USER, asks("a", "a"), result("a")], "two tool calls have the id 'a'"),
    ([USER, asks(""), result("")], "needs an id"),
    ([USER, asks("a"), {"role": "tool", "content": "x"}], "needs a tool_call_id"),
    ([USER, call_with(name="no spaces"), result("a")], "not a tool's name"),
    ([USER, call_with(arguments={}), result("a")], "must be text"),
    ([USER, {**ANSWER, "tool_calls": [{"id": "a"}]}], 'needs type "function"'),
]

BAD_FOR_ANTHROPIC: list[tuple[list[Any], str]] = [
    ([SYSTEM], "no user message"),
    ([USER, USER], "two messages of role user"),
    ([USER, ANSWER, ANSWER], "two messages of role assistant"),
    ([USER, ANSWER, SYSTEM, USER], "at the beginning only"),
    ([USER, call_with(arguments="{"), result("a")], "no JSON object"),
    ([USER, call_with(arguments="[]"), result("a")], "no JSON object"),
    ([USER, {"role": "assistant", "content": "Well "}], "ends in white space"),
]


@pytest.mark.parametrize("messages", GOOD)
def test_good_lists_pass(messages: list[dict[str, Any]]) -> None:
    check_messages(messages)


@pytest.mark.parametrize(("messages", "message"), BAD)
def test_each_broken_rule_is_named(messages: list[Any], message: str) -> None:
    for profile in ("openai", "anthropic"):
        with pytest.raises(MessageListError, match=message):
            check_messages(messages, profile)


@pytest.mark.parametrize(("messages", "message"), BAD_FOR_ANTHROPIC)
def test_anthropic_is_stricter(messages: list[Any], message: str) -> None:
    check_messages(messages)
    with pytest.raises(MessageListError, match=message):
        check_messages(messages, "anthropic")


def test_anthropic_takes_results_and_the_next_question_as_one_turn() -> None:
    check_messages([SYSTEM, USER, asks("a", "b"), result("a"), result("b"), USER, ANSWER], "anthropic")


def test_the_error_knows_the_place() -> None:
    with pytest.raises(MessageListError) as caught:
        check_messages([USER, asks("a"), USER])
    assert caught.value.index == 1


turns = st.lists(st.integers(0, 3), min_size=1, max_size=8)


def conversation(calls_per_turn: list[int]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for calls in calls_per_turn:
        ids = [str(n) for n in range(calls)]
        messages += [USER, *([asks(*ids), *map(result, ids)] if ids else []), ANSWER]
    return messages


@given(turns)
def test_whole_conversations_pass_both_profiles(calls_per_turn: list[int]) -> None:
    check_messages(conversation(calls_per_turn))
    check_messages(conversation(calls_per_turn), "anthropic")


@given(turns, st.data())
def test_a_conversation_cut_inside_a_tool_round_never_passes(
    calls_per_turn: list[int], data: st.DataObject
) -> None:
    messages = conversation(calls_per_turn)
    start = data.draw(st.integers(0, len(messages) - 1))
    if messages[start]["role"] == "user":
        check_messages(messages[start:])
    else:
        with pytest.raises(MessageListError):
            check_messages(messages[start:])
