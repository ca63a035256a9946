"""The turn engine: the graph of a chat turn, and `run_turn`, which takes one turn through it.

    START → route ─┬─ should_use_tools ──────────→ execute_tool → process_result ─┬─→ END
                   └─→ END                              ↑                         │
                                                        └─ should_continue_after_tool

The graph holds no state and is compiled once per process. What belongs to one turn, the callable
that takes its tokens included, travels in the run's config: of all ways out of a graph a plain
callable costs the least per token by far. A turn without tools can only ever visit `route`, so that
node's function is called directly: a run of the graph costs more than the rest of such a turn.
"""

from __future__ import annotations

import asyncio
import functools
import operator
import re
from collections.abc import Callable
from typing import Annotated, Any, Final, TypedDict, cast

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from aiforge.core.events import Event, Preamble, Token, ToolResult
from aiforge.core.router import own_prices
from aiforge.core.types import APITimeoutError
from aiforge.modules.chat.calls import Calls, Reply, Request
from aiforge.modules.chat.prompts import LIMIT_ANSWER, SUMMARY_MESSAGE
from aiforge.modules.chat.schemas import ToolCallRecord
from aiforge.modules.chat.toolbox import PendingCall, Toolbox, read_call
from aiforge.modules.chat.turn import Recorder, TurnResult, TurnSpec
from aiforge.tools.binding import bind

__all__ = [
    "ChatAgentState",
    "Recorder",
    "TurnResult",
    "TurnSpec",
    "build_chat_graph",
    "run_turn",
    "should_continue_after_tool",
    "should_use_tools",
]

TURN: Final = "turn"
"""Where a node finds its turn in the config's `configurable`."""

NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")
"""What providers refuse in a tool's name, even in one that the model made up."""


class ChatAgentState(TypedDict):
    """A turn on its way through the graph. Reducers add up what the nodes return."""

    messages: list[dict[str, Any]]
    current_input: str
    tool_calls: list[dict[str, Any]]
    tool_results: Annotated[list[dict[str, Any]], operator.add]
    iteration: int
    max_tool_iterations: int
    trace: Annotated[list[dict[str, Any]], operator.add]
    total_input_tokens: Annotated[int, operator.add]
    total_output_tokens: Annotated[int, operator.add]
    model: str


class _Turn:
    """What one turn needs besides its state."""

    def __init__(self, spec: TurnSpec, emit: Callable[[Event], None], recorder: Recorder) -> None:
        self.stream = spec.stream
        self.emit = emit
        self.toolbox = Toolbox(bind(spec.tools), spec.settings.TOOL_TIMEOUT)
        self.iteration_limit = False
        self.calls = Calls(
            model=spec.model,
            provider=spec.provider,
            model_name=spec.model_name,
            params=spec.params,
            max_retries=spec.settings.MAX_RETRIES,
            deadline=asyncio.get_running_loop().time() + spec.settings.TURN_TIMEOUT,
            emit=emit,
            recorder=recorder,
            prices=own_prices(spec.settings),
        )


async def run_turn(spec: TurnSpec, *, emit: Callable[[Event], None], recorder: Recorder) -> TurnResult:
    """Take one turn to its answer.

    `emit` is called on the event loop with Token, Preamble, ToolCall, ToolResult and UsageReport
    events and must not block. Raises AIForgeError; a cancellation passes through after the running
    provider call was settled as "aborted". Nothing that a tool does makes a turn fail.
    """
    turn = _Turn(spec, emit, recorder)
    start = _initial_state(spec)
    try:
        async with asyncio.timeout(spec.settings.TURN_TIMEOUT) as deadline:
            final = await (_run_graph(start, turn) if turn.toolbox.schemas else _run_route(start, turn))
    except TimeoutError:
        if not deadline.expired():
            raise
        raise APITimeoutError(
            f"the turn was not done within {spec.settings.TURN_TIMEOUT:g} s",
            provider=spec.provider,
            model=spec.model_name,
        ) from None
    gained = final["messages"][len(start["messages"]) - 1 :]
    return TurnResult(
        answer=gained[-1]["content"],
        messages=gained,
        tool_calls=[
            ToolCallRecord(tool=result["tool"], input=result["input"], output=result["output"])
            for result in final["tool_results"]
        ],
        iterations=final["iteration"],
        iteration_limit=turn.iteration_limit,
        usage=turn.calls.usage,
        calls=turn.calls.settled,
        model=spec.model_name,
    )


def _initial_state(spec: TurnSpec) -> ChatAgentState:
    messages: list[dict[str, Any]] = []
    if spec.system_prompt:
        messages.append({"role": "system", "content": spec.system_prompt})
    if spec.summary:
        messages.append({"role": "system", "content": SUMMARY_MESSAGE.format(summary=spec.summary)})
    messages.extend(spec.history)
    messages.append({"role": "user", "content": spec.message})
    return {
        "messages": messages,
        "current_input": spec.message if isinstance(spec.message, str) else _text_of(spec.message),
        "tool_calls": [],
        "tool_results": [],
        "iteration": 0,
        "max_tool_iterations": spec.max_tool_iterations,
        "trace": [],
        "total_input_tokens": 0,
        "total_output_tokens": 0,
        "model": spec.model_name,
    }


def _text_of(parts: list[dict[str, Any]]) -> str:
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


@functools.cache
def build_chat_graph() -> CompiledStateGraph[ChatAgentState, None, ChatAgentState, ChatAgentState]:
    """The compiled graph, one per process. `run_turn` is the way to run it."""
    graph = StateGraph(ChatAgentState)
    graph.add_node("route", route)
    graph.add_node("execute_tool", execute_tool)
    graph.add_node("process_result", process_result)
    graph.add_edge(START, "route")
    graph.add_conditional_edges("route", should_use_tools, ["execute_tool", END])
    graph.add_edge("execute_tool", "process_result")
    graph.add_conditional_edges("process_result", should_continue_after_tool, ["execute_tool", END])
    return graph.compile()


def should_use_tools(state: ChatAgentState) -> str:
    """Where `route` leads to."""
    return "execute_tool" if state["tool_calls"] else END


def should_continue_after_tool(state: ChatAgentState) -> str:
    """Where `process_result` leads to."""
    more = state["tool_calls"] and state["iteration"] < state["max_tool_iterations"]
    return "execute_tool" if more else END


async def _run_graph(start: ChatAgentState, turn: _Turn) -> ChatAgentState:
    steps = 1 + 2 * start["max_tool_iterations"]
    config: RunnableConfig = {"configurable": {TURN: turn}, "recursion_limit": steps + 1}
    return cast(ChatAgentState, await build_chat_graph().ainvoke(start, config))


async def _run_route(start: ChatAgentState, turn: _Turn) -> ChatAgentState:
    """What the graph would do, where only `route` can run: with nothing to add to, reducers replace."""
    update = await route(start, {"configurable": {TURN: turn}})
    return cast(ChatAgentState, {**start, **update})


async def route(state: ChatAgentState, config: RunnableConfig) -> dict[str, Any]:
    """Ask the model: it answers, or asks for tools."""
    return await _ask("route", state, _turn(config))


async def execute_tool(state: ChatAgentState, config: RunnableConfig) -> dict[str, Any]:
    """Run all pending tool calls side by side."""
    turn = _turn(config)
    pending = [PendingCall(**call) for call in state["tool_calls"]]
    results = await turn.toolbox.run(pending, state["iteration"], turn.emit)
    return {
        "messages": state["messages"] + [_tool_message(result) for result in results],
        "tool_calls": [],
        "tool_results": [
            {"id": call.id, "tool": call.tool, "input": call.input, "output": result.output, "ok": result.ok}
            for call, result in zip(pending, results, strict=True)
        ],
        "iteration": state["iteration"] + 1,
        "trace": [{"node": "execute_tool", "tools": [call.tool for call in pending]}],
    }


async def process_result(state: ChatAgentState, config: RunnableConfig) -> dict[str, Any]:
    """Ask the model again, now that it has the results; at the cap without tools, so that it answers."""
    turn = _turn(config)
    turn.iteration_limit = state["iteration"] >= state["max_tool_iterations"]
    return await _ask("process_result", state, turn)


def _turn(config: RunnableConfig) -> _Turn:
    turn = config["configurable"][TURN]
    assert isinstance(turn, _Turn)
    return turn


async def _ask(node: str, state: ChatAgentState, turn: _Turn) -> dict[str, Any]:
    before = turn.calls.usage
    reply = await turn.calls.ask(
        Request(
            messages=state["messages"],
            tools=None if turn.iteration_limit else turn.toolbox.schemas or None,
            round=state["iteration"] if turn.stream else None,
            may_be_empty=turn.iteration_limit,
        )
    )
    pending = _with_new_ids([read_call(call) for call in reply.tool_calls], state["messages"])
    after = turn.calls.usage
    return {
        "messages": [*state["messages"], _assistant_message(reply, pending, state["iteration"], turn)],
        "tool_calls": [msgspec.structs.asdict(call) for call in pending],
        "trace": [{"node": node, "tools": [call.tool for call in pending]}],
        "total_input_tokens": after.input_tokens - before.input_tokens,
        "total_output_tokens": after.output_tokens - before.output_tokens,
    }


def _with_new_ids(calls: list[PendingCall], messages: list[dict[str, Any]]) -> list[PendingCall]:
    """Ids that no earlier call has: some providers begin to count anew with every answer."""
    if not calls:
        return calls
    taken = {earlier["id"] for message in messages for earlier in message.get("tool_calls") or ()}
    return [
        msgspec.structs.replace(call, id=f"{call.id}_{len(messages)}") if call.id in taken else call
        for call in calls
    ]


def _assistant_message(reply: Reply, pending: list[PendingCall], round_: int, turn: _Turn) -> dict[str, Any]:
    text = reply.answer
    if pending:
        if text:
            turn.emit(Preamble(text, round_))
        return {
            "role": "assistant",
            "content": text or None,
            "tool_calls": [_openai_call(call) for call in pending],
        }
    if not text.strip():
        text += LIMIT_ANSWER
        if turn.stream:
            turn.emit(Token(LIMIT_ANSWER, round_))
    return {"role": "assistant", "content": text}


def _openai_call(call: PendingCall) -> dict[str, Any]:
    """The call as providers accept it back, which they do not always do with what the model wrote."""
    return {
        "id": call.id,
        "type": "function",
        "function": {
            "name": NOT_IN_NAMES.sub("_", call.tool)[:64] or "unknown",
            "arguments": msgspec.json.encode(call.input).decode(),
        },
    }


def _tool_message(result: ToolResult) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": result.id, "content": result.output}
