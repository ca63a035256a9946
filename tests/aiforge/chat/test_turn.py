"""`run_turn`: what a turn asks, emits, records and returns."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import date
from decimal import Decimal
from typing import Any, NoReturn

import pytest
from langchain_core.tools import StructuredTool
from pydantic import BaseModel, ConfigDict

from aiforge.core.events import Preamble, Token, ToolResult, UsageReport
from aiforge.core.events import ToolCall as ToolCallEvent
from aiforge.core.providers import create_model
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import (
    APITimeoutError,
    EmptyAnswerError,
    ProviderError,
    RateLimitError,
    StreamCutError,
    UnavailableError,
    Usage,
)
from aiforge.modules.chat import agent
from aiforge.modules.chat.prompts import LIMIT_ANSWER
from aiforge.testing import (
    TOOL_SHAPES,
    FakeProvider,
    Reply,
    ScriptedModel,
    ToolCall,
    check_messages,
    rate_limited,
)
from aiforge.testing.script import ToolShape
from tests.aiforge.chat.support import DuckTool, Turn, run, until


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


ADD = StructuredTool.from_function(add)


def test_an_answer_is_streamed_recorded_and_returned() -> None:
    turn = Turn(ScriptedModel(replies=[["Hel", "lo"]], usage=Usage(10, 2)))

    result = run(turn.run())

    assert result.answer == "Hello"
    assert result.messages == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello"},
    ]
    assert (result.iterations, result.tool_calls, result.iteration_limit) == (0, [], False)
    assert [token.text for token in turn.of(Token)] == ["Hel", "lo"]
    (intended,), (settled,) = turn.recorder.intended, turn.recorder.settled
    assert (intended.outcome, intended.usage) == ("intended", None)
    assert (settled.outcome, settled.purpose, settled.call_id) == ("ok", "answer", intended.call_id)
    assert settled.usage is not None
    assert (settled.usage.input_tokens, settled.usage.output_tokens) == (10, 2)
    assert settled.cost is None
    assert settled.first_token_ms is not None
    assert settled.latency_ms is not None
    assert settled.first_token_ms <= settled.latency_ms
    assert result.calls == [settled]
    assert turn.of(UsageReport)[0].call_id == settled.call_id


def test_the_model_receives_prompt_summary_history_and_message_in_this_order() -> None:
    model = ScriptedModel(replies=["Fine."])
    history = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "One."}]
    turn = Turn(model, history=history, summary="Zero was settled.", message="Two?")

    run(turn.run())

    asked = model.requests[0]["messages"]
    assert [message["role"] for message in asked] == ["system", "system", "user", "assistant", "user"]
    assert asked[0]["content"] == "Be kind."
    assert "Zero was settled." in asked[1]["content"]
    assert asked[-1]["content"] == "Two?"
    assert len(history) == 2


def test_without_stream_there_are_no_tokens() -> None:
    turn = Turn(ScriptedModel(replies=["All at once."]), stream=False)
    assert run(turn.run()).answer == "All at once."
    assert turn.of(Token) == []
    assert len(turn.of(UsageReport)) == 1


@pytest.mark.parametrize("replies", [[["Hel", "lo"]], [RuntimeError("broken")]], ids=["answer", "failure"])
def test_a_turn_without_tools_is_the_same_with_and_without_the_graph(
    replies: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[Any] = []
    seen: list[tuple[Any, ...]] = []
    direct, through_graph = agent._run_route, agent._run_graph
    for path in (direct, through_graph):

        async def watched(*arguments: Any, path: Any = path) -> Any:
            states.append(await path(*arguments))
            return states[-1]

        monkeypatch.setattr(agent, "_run_route", watched)
        turn = Turn(ScriptedModel(replies=replies), settings={"MAX_RETRIES": 0})
        try:
            outcome: Any = run(turn.run()).messages
        except ProviderError as error:
            outcome = type(error), str(error), error.code
        kinds = [type(event).__name__ for event in turn.events]
        calls = [(call.outcome, call.usage, call.error_code) for call in turn.recorder.settled]
        seen.append((outcome, kinds, turn.of(Token), calls))
    assert seen[0] == seen[1]
    assert states[:1] == states[1:]


def test_a_tool_round_goes_through_call_result_and_answer() -> None:
    model = ScriptedModel(replies=[["Let me see.", ToolCall("add", {"a": 2, "b": 3})], "It is 5."])
    turn = Turn(model, tools=[ADD])

    result = run(turn.run())

    assert result.answer == "It is 5."
    assert result.iterations == 1
    (record,) = result.tool_calls
    assert (record.tool, record.input, record.output) == ("add", {"a": 2, "b": 3}, "5")
    assert turn.of(Preamble) == [Preamble("Let me see.", 0)]
    assert [token.text for token in turn.of(Token) if token.round == 1] == ["It", " is", " 5."]
    assert [event.input for event in turn.of(ToolCallEvent)] == [{"a": 2, "b": 3}]
    assert [message["role"] for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert [call.purpose for call in turn.recorder.settled] == ["tool_round", "answer"]
    assert model.requests[0]["tools"][0]["function"]["name"] == "add"
    check_messages(model.requests[1]["messages"], "anthropic")


def test_parallel_tools_run_side_by_side_and_keep_order_and_ids() -> None:
    together = threading.Barrier(3, timeout=10)

    def meet(arguments: dict[str, Any]) -> str:
        together.wait()
        return f"met as {arguments['n']}"

    calls = [ToolCall("meet", {"n": n}, id=f"id{n}") for n in range(3)]
    turn = Turn(ScriptedModel(replies=[calls, "Done."]), tools=[DuckTool("meet", meet)])

    result = run(turn.run())

    results = [message for message in result.messages if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in results] == ["id0", "id1", "id2"]
    assert [message["content"] for message in results] == ["met as 0", "met as 1", "met as 2"]


def test_whatever_goes_wrong_in_a_tool_becomes_a_result_for_the_model() -> None:
    def silent_error(arguments: dict[str, Any]) -> str:
        raise ValueError

    async def hang(arguments: dict[str, Any]) -> str:
        await asyncio.Event().wait()
        return "never"

    async def cancel_itself(arguments: dict[str, Any]) -> str:
        raise asyncio.CancelledError

    def leave(arguments: dict[str, Any]) -> str:
        raise SystemExit(3)

    async def leave_async(arguments: dict[str, Any]) -> str:
        raise SystemExit(3)

    forever = threading.Event()
    tools = [
        ADD,
        DuckTool("silent_error", silent_error),
        DuckTool("hang", hang),
        DuckTool("hang_in_thread", lambda arguments: forever.wait()),
        DuckTool("cancel_itself", cancel_itself),
        DuckTool("leave", leave),
        DuckTool("leave_async", leave_async),
    ]
    wrong = [
        ToolCall("silent_error"),
        ToolCall("hang"),
        ToolCall("hang_in_thread"),
        ToolCall("cancel_itself"),
        ToolCall("leave"),
        ToolCall("leave_async"),
        ToolCall("no such tool"),
        ToolCall("add", '{"a": 1'),
        ToolCall("add", "[1, 2]"),
        ToolCall("add", {"a": "x"}),
    ]
    model = ScriptedModel(replies=[[ToolCall("add", {"a": 1, "b": 1}), *wrong], "Sorry."])
    turn = Turn(model, tools=tools, settings={"TOOL_TIMEOUT": 0.2})

    result = run(turn.run())
    forever.set()

    assert result.answer == "Sorry."
    outputs = {event.id: event for event in turn.of(ToolResult)}
    ordered = [outputs[event.id] for event in turn.of(ToolCallEvent)]
    assert [event.ok for event in ordered] == [True] + [False] * len(wrong)
    texts = [event.output for event in ordered]
    assert texts[0] == "2"
    assert texts[1] == "error: ValueError"
    assert texts[2] == texts[3] == "error: the tool did not return within 0.2 s"
    assert texts[4] == "error: the tool was cancelled"
    assert "SystemExit" in texts[5]
    assert "end the process" in texts[6]
    assert "there is no tool 'no such tool'" in texts[7]
    assert "not valid JSON" in texts[8]
    assert "JSON object" in texts[9]
    assert all(texts)
    check_messages(model.requests[1]["messages"], "anthropic")
    check_messages([*result.messages, {"role": "user", "content": "Go on."}], "anthropic")


def test_at_the_cap_the_model_is_asked_once_more_without_tools() -> None:
    def reply(messages: list[Any]) -> Any:
        return [ToolCall("add", {"a": 1, "b": 1})] if len(model.requests) < 4 else "That is all I know."

    model = ScriptedModel(replies=[reply], repeat_last=True)
    turn = Turn(model, tools=[ADD], max_tool_iterations=3)

    result = run(turn.run())

    assert ["tools" in request for request in model.requests] == [True, True, True, False]
    assert (result.answer, result.iterations, result.iteration_limit) == ("That is all I know.", 3, True)
    ids = [event.id for event in turn.of(ToolCallEvent)]
    assert len(set(ids)) == 3


def test_an_answer_at_the_cap_is_never_empty() -> None:
    model = ScriptedModel(replies=[[ToolCall("add", {"a": 1, "b": 1})]], repeat_last=True)
    turn = Turn(model, tools=[ADD], max_tool_iterations=1)

    result = run(turn.run())

    assert result.answer == LIMIT_ANSWER
    assert "".join(token.text for token in turn.of(Token)) == LIMIT_ANSWER
    assert result.iteration_limit


def test_a_failure_that_can_pass_is_repeated_as_a_call_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiforge.core.retry.FIRST_WAIT", 0)
    monkeypatch.setattr("aiforge.core.retry.JITTER", 0)
    turn = Turn(ScriptedModel(replies=[UnavailableError("down", status=503), "Back."]))

    result = run(turn.run())

    assert result.answer == "Back."
    assert turn.recorder.outcomes == ["error", "ok"]
    failed, _ = turn.recorder.settled
    assert (failed.error_code, failed.usage, failed.cost) == ("provider_unavailable", Usage(), Decimal(0))
    assert len({call.call_id for call in turn.recorder.settled}) == 2


def test_a_permanent_429_costs_four_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiforge.core.retry.JITTER", 0)
    turn = Turn(
        ScriptedModel(replies=[RateLimitError("no", status=429, retry_after=0.001)], repeat_last=True)
    )
    with pytest.raises(RateLimitError):
        run(turn.run())
    assert turn.recorder.outcomes == ["error"] * 4


def test_a_wait_past_the_deadline_is_not_begun() -> None:
    turn = Turn(ScriptedModel(replies=[RateLimitError("no", status=429, retry_after=3600)]))
    with pytest.raises(RateLimitError):
        run(turn.run())
    assert turn.recorder.outcomes == ["error"]


def test_once_a_token_was_given_out_there_is_no_retry() -> None:
    turn = Turn(ScriptedModel(replies=[["Hel", UnavailableError("cut")], "Hello"]))
    with pytest.raises(ProviderError) as raised:
        run(turn.run())
    assert raised.value.retryable
    (call,) = turn.recorder.settled
    assert call.outcome == "error"
    assert call.usage is not None
    assert call.usage.estimated
    assert call.usage.output_tokens > 0


def test_without_stream_a_cut_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiforge.core.retry.FIRST_WAIT", 0)
    monkeypatch.setattr("aiforge.core.retry.JITTER", 0)
    turn = Turn(ScriptedModel(replies=[["Hel", StreamCutError("cut")], "Hello"]), stream=False)
    assert run(turn.run()).answer == "Hello"
    assert turn.recorder.outcomes == ["error", "ok"]


def test_an_empty_answer_is_an_error() -> None:
    turn = Turn(ScriptedModel(replies=[[" "]]))
    with pytest.raises(EmptyAnswerError, match="empty"):
        run(turn.run())
    assert turn.recorder.outcomes == ["error"]


@pytest.mark.parametrize("tools", [[], [ADD]], ids=["route", "graph"])
def test_cancelling_settles_the_running_call_as_aborted(tools: list[Any]) -> None:
    async def scenario() -> None:
        turn = Turn(_Stuck(), tools=tools)
        task = asyncio.create_task(turn.run())
        await until(lambda: bool(turn.of(Token)))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (call,) = turn.recorder.settled
        assert call.outcome == "aborted"
        assert call.usage is not None
        assert call.usage.estimated
        assert call.usage.input_tokens > 0
        assert call.usage.output_tokens > 0

    run(scenario())


@pytest.mark.parametrize("tools", [[], [ADD]], ids=["route", "graph"])
def test_a_client_that_cancels_itself_is_a_failure_and_no_cancellation(tools: list[Any]) -> None:
    turn = Turn(_GivesUp(), tools=tools, settings={"MAX_RETRIES": 0})
    with pytest.raises(UnavailableError, match="by itself"):
        run(turn.run())
    assert turn.recorder.outcomes == ["error"]


@pytest.mark.parametrize("tools", [[], [ADD]], ids=["route", "graph"])
def test_a_turn_ends_at_its_deadline(tools: list[Any]) -> None:
    turn = Turn(_Stuck(), tools=tools, settings={"TURN_TIMEOUT": 0.1})
    with pytest.raises(APITimeoutError, match=r"within 0\.1 s"):
        run(turn.run())
    assert turn.recorder.outcomes == ["aborted"]


def test_the_graph_is_compiled_once_and_has_the_documented_nodes() -> None:
    graph = agent.build_chat_graph()
    assert graph is agent.build_chat_graph()
    assert set(graph.nodes) == {"__start__", "route", "execute_tool", "process_result"}
    state: Any = {"tool_calls": [{}], "iteration": 1, "max_tool_iterations": 2}
    assert agent.should_use_tools(state) == "execute_tool"
    assert agent.should_continue_after_tool(state) == "execute_tool"
    state["iteration"] = 2
    assert agent.should_continue_after_tool(state) == "__end__"
    state["tool_calls"] = []
    assert agent.should_use_tools(state) == "__end__"


class _GivesUp(ScriptedModel):
    """Its client's own time limit leaks out."""

    async def _astream(self, *arguments: Any, **options: Any) -> Any:
        raise asyncio.CancelledError
        yield


class _Stuck(ScriptedModel):
    """Says one word and then nothing any more."""

    async def _astream(self, *arguments: Any, **options: Any) -> Any:
        model = ScriptedModel(replies=["One two"])
        async for chunk in model._astream(*arguments, **options):
            yield chunk
            await asyncio.Event().wait()


@pytest.mark.parametrize("shape", sorted(set(TOOL_SHAPES) - {"empty_arguments"}))
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_tool_calls_of_every_shape_arrive_whole(shape: ToolShape, stream: bool) -> None:
    calls = [ToolCall("add", {"a": 1, "b": 2}), ToolCall("add", {"a": 30, "b": 4})]
    with FakeProvider(Reply(tool_calls=calls, tool_shape=shape), "Done.", strict=True) as provider:
        settings = {"OPENAI_BASE_URL": provider.url, "OPENAI_API_KEY": "key"}
        model = create_model(AIForgeSettings.load(**settings))
        turn = Turn(model, tools=[ADD], stream=stream, settings=settings)
        result = run(turn.run())
        assert [record.output for record in result.tool_calls] == ["3", "34"]
        results = [message for message in provider.calls[1].messages if message["role"] == "tool"]
        assert [message["content"] for message in results] == ["3", "34"]
        assert [call.call_id for call in provider.calls] == [call.call_id for call in turn.recorder.intended]


def test_a_provider_that_always_says_429_is_asked_four_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiforge.core.retry.JITTER", 0)
    with FakeProvider(*[rate_limited(0.01, form="ms")] * 9) as provider:
        settings = {"OPENAI_BASE_URL": provider.url, "OPENAI_API_KEY": "key"}
        turn = Turn(create_model(AIForgeSettings.load(**settings)), settings=settings)
        with pytest.raises(RateLimitError) as raised:
            run(turn.run())
        assert (raised.value.status, raised.value.provider) == (429, "openai")
        assert [call.status for call in provider.calls] == [429] * 4


class Unspeakable:
    def __str__(self) -> str:
        raise LookupError("no words")

    def __repr__(self) -> str:
        return "unspeakable"


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise LookupError("no words")


class Thing:
    def __repr__(self) -> str:
        return "a thing"


class Model(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    thing: Any


def unspeakable_error(arguments: dict[str, Any]) -> NoReturn:
    raise UnspeakableError


CIRCLE: list[Any] = [1]
CIRCLE.append(CIRCLE)
DEEP: list[Any] = []
for _ in range(5_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ({date(2026, 1, 1): 5}, "{datetime.date(2026, 1, 1): 5}"),
        ({(1, 2): 3}, "{(1, 2): 3}"),
        (CIRCLE, "[1, [...]]"),
        ({"a": {1, 2}}, '{"a": "{1, 2}"}'),
        (Model(thing=3), '{"thing":3}'),
        (Model(thing=Thing()), "thing=a thing"),
        (Unspeakable(), "error: LookupError: no words"),
        ({"a": Unspeakable()}, "{'a': unspeakable}"),
        (DEEP, "error: RecursionError"),
        ("half \ud800", "half ?"),
        (b"bytes", "b'bytes'"),
        (None, "null"),
    ],
)
@pytest.mark.parametrize("awaited", [False, True])
def test_a_tool_may_return_anything(output: Any, text: str, *, awaited: bool) -> None:
    async def later(arguments: dict[str, Any]) -> Any:
        return output

    tool = DuckTool("give", later if awaited else lambda arguments: output)
    turn = Turn(ScriptedModel(replies=[[ToolCall("give")], "Thanks."]), tools=[tool])
    assert run(turn.run()).answer == "Thanks."
    (result,) = turn.of(ToolResult)
    if text.startswith("error: "):
        assert not result.ok
        assert result.output.startswith(text)
    else:
        assert (result.output, result.ok) == (text, True)


def test_a_tool_may_raise_anything() -> None:
    turn = Turn(
        ScriptedModel(replies=[[ToolCall("fail")], "Sorry."]), tools=[DuckTool("fail", unspeakable_error)]
    )
    assert run(turn.run()).answer == "Sorry."
    assert [result.output for result in turn.of(ToolResult)] == ["error: UnspeakableError"]


@pytest.mark.parametrize("arguments", ["", " ", "\n\t", "{}", " {} "])
def test_no_arguments_are_no_arguments_however_they_are_written(arguments: str) -> None:
    seen: list[Any] = []
    model = ScriptedModel(replies=[[ToolCall("look", arguments)], "Done."])
    run(Turn(model, tools=[DuckTool("look", seen.append)]).run())
    assert seen == [{}]


def test_the_record_is_of_what_was_asked() -> None:
    def spoil(arguments: dict[str, Any]) -> str:
        arguments["list"].append(2)
        return str(arguments.pop("list"))

    model = ScriptedModel(replies=[[ToolCall("spoil", {"list": [1]})], "Done."])
    turn = Turn(model, tools=[DuckTool("spoil", spoil)])
    (record,) = run(turn.run()).tool_calls
    assert (record.input, record.output) == ({"list": [1]}, "[1, 2]")
    assert turn.of(ToolCallEvent)[0].input == {"list": [1]}
    asked = model.requests[1]["messages"][-2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(asked) == {"list": [1]}


def test_tools_are_offered_under_names_that_every_provider_takes() -> None:
    ran: list[str] = []
    names = ["a.b", "a_b", "a b", "größe", "n" * 80]

    def tool(name: str) -> DuckTool:
        return DuckTool(name, lambda arguments: ran.append(name))

    model = ScriptedModel(replies=["later", "Done."])
    run(Turn(model, tools=[tool(name) for name in names]).run())
    offered = [each["function"]["name"] for each in model.requests[0]["tools"]]
    assert offered == ["a_b_2", "a_b", "a_b_3", "gr__e", "n" * 64]
    model = ScriptedModel(replies=[[ToolCall(name) for name in offered], "Done."])
    turn = Turn(model, tools=[tool(name) for name in names])
    result = run(turn.run())
    assert sorted(ran) == sorted(names)
    assert [record.tool for record in result.tool_calls] == names
    assert [event.name for event in turn.of(ToolCallEvent)] == names
    told = model.requests[1]["messages"][-6]["tool_calls"]
    assert [call["function"]["name"] for call in told] == offered
