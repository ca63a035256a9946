"""Turns that wait for a human: what they ask, what they keep, and how they go on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.language_models import BaseChatModel
from langchain_core.tools import StructuredTool

from aiforge.core.call_key import current_call_key
from aiforge.core.events import RequiresAction, Token, ToolResult
from aiforge.core.events import ToolCall as ToolCallEvent
from aiforge.modules.chat.agent import TurnResult
from aiforge.modules.chat.memory import settled
from aiforge.modules.chat.prompted import valid_name
from aiforge.modules.chat.turn import Resume
from aiforge.testing import ScriptedModel, ToolCall, check_messages
from aiforge.tools.human import ASK_HUMAN, ask_human
from tests.aiforge.chat.support import DuckTool, Turn, run


class Guarded:
    """A tool that a human has to allow; counts how often it ran."""

    name = "delete"
    description = "Deletes."
    approval = True

    def __init__(self) -> None:
        self.ran: list[dict[str, Any]] = []
        self.keys: list[str] = []

    def invoke(self, arguments: dict[str, Any]) -> str:
        self.ran.append(arguments)
        self.keys.append(current_call_key())
        return "deleted"


HARMLESS = DuckTool("look", lambda arguments: "seen")


def turn_of(model: BaseChatModel, guarded: Guarded, **fields: Any) -> Turn:
    return Turn(model, tools=[guarded, HARMLESS, ask_human], turn_id="t1", **fields)


def go_on(model: BaseChatModel, guarded: Guarded, paused: TurnResult, answer: str, **fields: Any) -> Turn:
    """The next turn object, from what a store would give back."""
    assert paused.pending is not None
    messages = json.loads(json.dumps(paused.messages))
    resume = Resume(messages, {paused.pending.call_id: answer})
    return turn_of(model, guarded, resume=resume, message="not used", **fields)


@pytest.mark.parametrize("native", [True, False], ids=["native", "prompted"])
@pytest.mark.parametrize(
    ("answer", "ran", "output"),
    [
        ("approved", 1, "deleted"),
        (" Yes ", 1, "deleted"),
        ("Not on a Friday.", 0, "error: a human refused this call: Not on a Friday."),
        ("", 0, "error: a human refused this call"),
    ],
)
def test_a_guarded_tool_waits_for_its_approval(native: bool, answer: str, ran: int, output: str) -> None:
    guarded = Guarded()
    first: Any = [
        ToolCall("look", {}, id="a"),
        ToolCall("delete", {"n": 1}, id="b"),
        ToolCall("look", {}, id="c"),
    ]
    if not native:
        first = "\n".join(f"TOOL_CALL: {call.name} {json.dumps(call.arguments)}" for call in first)
    model = ScriptedModel(replies=[first, "All done."])
    turn = turn_of(model, guarded, native_tools=native)

    paused = run(turn.run())

    assert (paused.answer, paused.iterations, guarded.ran) == ("", 0, [])
    question = paused.pending
    assert question is not None
    assert (question.kind, question.tool, question.input) == ("approval", "delete", {"n": 1})
    assert len(question.question_id) == 16
    assert [record.tool for record in paused.tool_calls] == ["look", "look"]
    assert [message["role"] for message in paused.messages] == ["user", "assistant", "tool", "tool"]
    assert turn.of(RequiresAction) == [RequiresAction(question.question_id, "approval", question.text)]
    assert [event.name for event in turn.of(ToolCallEvent)] == ["look", "delete", "look"]

    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    after = go_on(model, guarded, paused, answer, native_tools=native, history=history)
    result = run(after.run())

    assert (result.answer, result.iterations, result.pending) == ("All done.", 1, None)
    assert len(guarded.ran) == ran
    assert [(record.tool, record.output) for record in result.tool_calls][-1] == ("delete", output)
    assert len(result.tool_calls) == 3
    assert [message["role"] for message in result.messages] == [
        "user",
        "assistant",
        *["tool"] * 3,
        "assistant",
    ]
    asked = result.messages[1]["tool_calls"]
    assert [message["tool_call_id"] for message in result.messages[2:5]] == [call["id"] for call in asked]
    assert result.messages[0]["content"] == "Hello"
    assert after.of(ToolCallEvent) == []
    assert [event.name for event in after.of(ToolResult)] == ["delete"]
    assert "".join(token.text for token in after.of(Token)) == "All done."
    assert len(model.requests) == 2
    check_messages(model.requests[1]["messages"], "anthropic")


def test_the_model_asks_a_human() -> None:
    guarded = Guarded()
    model = ScriptedModel(
        replies=[["Wait. ", ToolCall(ASK_HUMAN, {"question": "Which one?"})], "Blue it is."]
    )
    paused = run(turn_of(model, guarded).run())
    assert paused.pending is not None
    assert (paused.pending.kind, paused.pending.text, paused.pending.tool) == ("question", "Which one?", None)
    result = run(go_on(model, guarded, paused, "The blue one.").run())
    assert result.answer == "Blue it is."
    assert result.messages[2]["content"] == "The blue one."


def test_nobody_but_a_turn_can_ask() -> None:
    with pytest.raises(RuntimeError, match="only a turn"):
        ask_human.invoke({"question": "Which one?"})


def test_a_question_without_text_is_an_error_for_the_model() -> None:
    model = ScriptedModel(
        replies=[[ToolCall(ASK_HUMAN, {"question": " "}), ToolCall(ASK_HUMAN, "{")], "Sorry."]
    )
    result = run(turn_of(model, Guarded()).run())
    assert (result.answer, result.pending) == ("Sorry.", None)
    assert all(str(record.output).startswith("error: ") for record in result.tool_calls)


def test_a_tool_of_ones_own_of_that_name_is_just_a_tool() -> None:
    model = ScriptedModel(replies=[[ToolCall(ASK_HUMAN, {"question": "Which?"})], "Done."])
    turn = Turn(model, tools=[DuckTool(ASK_HUMAN, lambda arguments: "asked myself")])
    assert run(turn.run()).tool_calls[0].output == "asked myself"


def test_a_langchain_tool_says_in_its_metadata_that_it_needs_approval() -> None:
    def wipe(disk: str) -> str:
        """Wipe a disk."""
        return f"wiped {disk}"

    tool = StructuredTool.from_function(wipe, metadata={"approval": True})
    model = ScriptedModel(replies=[[ToolCall("wipe", {"disk": "a"}, id="w")], "Done."])
    paused = run(Turn(model, tools=[tool]).run())
    assert paused.pending is not None
    assert paused.pending.input == {"disk": "a"}
    result = run(Turn(model, tools=[tool], resume=Resume(paused.messages, {"w": "yes"})).run())
    assert result.tool_calls[0].output == "wiped a"


def test_two_questions_of_a_round_are_asked_one_after_the_other() -> None:
    guarded = Guarded()
    calls = [ToolCall("delete", {"n": 1}, id="a"), ToolCall("delete", {"n": 2}, id="b")]
    model = ScriptedModel(replies=[calls, "Done."])
    first = run(turn_of(model, guarded).run())
    second = run(go_on(model, guarded, first, "yes").run())
    assert guarded.ran == [{"n": 1}]
    assert first.pending is not None
    assert second.pending is not None
    assert (first.pending.call_id, second.pending.call_id) == ("a", "b")
    assert first.pending.question_id != second.pending.question_id
    last = run(go_on(model, guarded, second, "no").run())
    assert last.answer == "Done."
    assert guarded.ran == [{"n": 1}]
    assert guarded.keys == ["t1:a"]


def test_an_answer_to_another_call_leaves_the_question_open() -> None:
    guarded = Guarded()
    model = ScriptedModel(replies=[[ToolCall("delete", {}, id="a")], "Done."])
    paused = run(turn_of(model, guarded).run())
    again = run(turn_of(model, guarded, resume=Resume(paused.messages, {"z": "yes"})).run())
    assert again.pending is not None
    assert again.messages == paused.messages
    assert guarded.ran == []


def test_a_tool_that_is_gone_by_then_is_an_error_for_the_model() -> None:
    guarded = Guarded()
    model = ScriptedModel(replies=[[ToolCall("delete", {}, id="a")], "Too late."])
    paused = run(turn_of(model, guarded).run())
    turn = Turn(model, resume=Resume(paused.messages, {"a": "yes"}))
    result = run(turn.run())
    assert result.answer == "Too late."
    assert "there is no tool" in result.messages[2]["content"]


def test_a_paused_turn_still_ends_at_its_cap() -> None:
    guarded = Guarded()
    model = ScriptedModel(replies=[[ToolCall("look")], [ToolCall("delete")], "The end."])
    paused = run(turn_of(model, guarded, max_tool_iterations=2).run())
    assert paused.iterations == 1
    result = run(go_on(model, guarded, paused, "yes", max_tool_iterations=2).run())
    assert (result.answer, result.iterations, result.iteration_limit) == ("The end.", 2, True)
    assert [record.tool for record in result.tool_calls] == ["look", "delete"]
    assert "tools" not in model.requests[-1]


def test_a_key_is_asked_for_only_inside_of_a_call() -> None:
    with pytest.raises(LookupError, match="no tool call"):
        current_call_key()


@pytest.mark.parametrize(("started", "text"), [((), "not executed"), (("b",), "may have completed")])
def test_a_paused_turn_that_does_not_go_on_is_settled(started: tuple[str, ...], text: str) -> None:
    model = ScriptedModel(replies=[[ToolCall("look", {}, id="a"), ToolCall("delete", {}, id="b")]])
    paused = run(turn_of(model, Guarded()).run())
    messages = settled(paused.messages, started=started)
    check_messages([*messages, {"role": "user", "content": "next"}], "anthropic")
    assert messages[2]["content"] == "seen"
    assert text in messages[3]["content"]
    assert settled(messages) == messages
    for content in ("next", [{"type": "text", "text": "next"}]):
        model = ScriptedModel(replies=["Done."])
        run(Turn(model, history=messages, message=content, native_tools=False).run())
        check_messages(model.requests[0]["messages"], "anthropic")
        assert "next" in str(model.requests[0]["messages"][-1]["content"])


ROUNDS = st.lists(
    st.lists(st.sampled_from(["look", "delete", ASK_HUMAN, "not there"]), min_size=1, max_size=3), max_size=3
)


@settings(max_examples=80)
@given(rounds=ROUNDS, answers=st.lists(st.sampled_from(["yes", "no", ""]), min_size=12), native=st.booleans())
def test_any_turn_goes_on_to_its_answer_with_valid_messages(
    rounds: list[list[str]], answers: list[str], native: bool
) -> None:
    guarded = Guarded()
    replies: list[Any] = []
    for names in rounds:
        calls = [ToolCall(name, {"question": "Which?"}) for name in names]
        words = "\n".join(json.dumps({"tool": call.name, "input": call.arguments}) for call in calls)
        replies.append(calls if native else words)
    model = ScriptedModel(replies=[*replies, "The end."])
    result = run(turn_of(model, guarded, native_tools=native).run())
    while result.pending is not None:
        check_messages([*settled(result.messages), {"role": "user", "content": "next"}], "anthropic")
        result = run(go_on(model, guarded, result, answers.pop(), native_tools=native).run())
    assert result.answer == "The end."
    called = [record.tool for record in result.tool_calls]
    assert sorted(map(valid_name, called)) == sorted(valid_name(name) for names in rounds for name in names)
    assert result.iterations == len(rounds)
    assert len(model.requests) == len(rounds) + 1
    check_messages([*result.messages, {"role": "user", "content": "next"}], "anthropic")
    for request in model.requests:
        check_messages(request["messages"], "openai")
        check_messages(request["messages"], "anthropic")
