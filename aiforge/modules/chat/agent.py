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
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Final, TypedDict, cast

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from aiforge.core.deltas import AssembledCall
from aiforge.core.events import Event, Preamble, RequiresAction, Token, ToolCall, ToolResult
from aiforge.core.recorder import Recorder
from aiforge.core.router import own_prices
from aiforge.core.types import APITimeoutError
from aiforge.core.windows import takes_images
from aiforge.modules.chat.calls import Calls, Reply, Request
from aiforge.modules.chat.images import with_images
from aiforge.modules.chat.memory import with_results
from aiforge.modules.chat.prompted import in_words
from aiforge.modules.chat.prompts import LIMIT_ANSWER
from aiforge.modules.chat.schemas import PendingQuestion, ToolCallRecord
from aiforge.modules.chat.toolbox import PendingCall, Toolbox
from aiforge.modules.chat.turn import Resume, TurnResult, TurnSpec, instructions, text_of
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
        self.budget = spec.budget
        self.max_tokens = spec.params.max_tokens
        self.begins = 0
        """Where the turn's own messages begin in the state's."""
        self.emit = emit
        begun = spec.resume.begun if spec.resume else ()
        self.toolbox = Toolbox(bind(spec.tools), spec.settings.TOOL_TIMEOUT, spec.turn_id, self._sees, begun)
        self.journal = spec.journal
        self.answers = spec.resume.answers if spec.resume else {}
        self.announced: set[str] = set()
        """Calls whose ToolCall event went out, before a pause or since."""
        self.pending: PendingQuestion | None = None
        self.iteration_limit = False
        self.finish = ""
        self.calls = Calls(
            model=spec.model,
            provider=spec.provider,
            model_name=spec.model_name,
            params=spec.params,
            max_retries=spec.settings.MAX_RETRIES,
            deadline=asyncio.get_running_loop().time() + spec.settings.TURN_TIMEOUT,
            emit=emit,
            recorder=recorder,
            prices=own_prices(spec.settings, spec.provider),
            gate=spec.gate,
            fallbacks=spec.fallbacks,
            native=spec.native_tools,
            attempt=spec.attempt,
        )

    def _sees(self) -> bool:
        return takes_images(self.calls.route.model, self.calls.route.model_name)

    async def keep(self, result: ToolResult) -> None:
        """Write down what a tool has done before anything builds on it."""
        if self.journal is not None:
            await self.journal.end(_tool_message(result))


async def run_turn(spec: TurnSpec, *, emit: Callable[[Event], None], recorder: Recorder) -> TurnResult:
    """Take one turn to its answer.

    `emit` is called on the event loop with Token, Preamble, ToolCall, ToolResult and UsageReport
    events and must not block. Raises AIForgeError; a cancellation passes through after the running
    provider call was settled as "aborted". Nothing that a tool does makes a turn fail.
    """
    turn = _Turn(spec, emit, recorder)
    start = _initial_state(spec)
    turn.begins = len(start["messages"]) - 1
    if spec.resume is not None:
        turn.begins, start = _resumed_state(spec, spec.resume, turn)
    uses_graph = turn.toolbox.schemas or start["tool_calls"]
    try:
        async with asyncio.timeout(spec.settings.TURN_TIMEOUT) as deadline:
            final = await (_run_graph(start, turn) if uses_graph else _run_route(start, turn))
    except TimeoutError:
        if not deadline.expired():
            raise
        raise APITimeoutError(
            f"the turn was not done within {spec.settings.TURN_TIMEOUT:g} s",
            provider=spec.provider,
            model=spec.model_name,
        ) from None
    gained = final["messages"][turn.begins :]
    return TurnResult(
        answer="" if turn.pending else gained[-1]["content"],
        messages=gained,
        tool_calls=[
            ToolCallRecord(tool=result["tool"], input=result["input"], output=result["output"])
            for result in final["tool_results"]
        ],
        iterations=final["iteration"],
        iteration_limit=turn.iteration_limit,
        usage=turn.calls.usage,
        calls=turn.calls.settled,
        model=turn.calls.route.model_name,
        pending=turn.pending,
        finish=turn.finish,
    )


def _initial_state(spec: TurnSpec) -> ChatAgentState:
    messages = [*instructions(spec.system_prompt, spec.summary), *spec.history]
    messages.append({"role": "user", "content": spec.message})
    return {
        "messages": messages,
        "current_input": spec.text,
        "tool_calls": [],
        "tool_results": [],
        "iteration": 0,
        "max_tool_iterations": spec.max_tool_iterations,
        "trace": [],
        "total_input_tokens": 0,
        "total_output_tokens": 0,
        "model": spec.model_name,
    }


def _resumed_state(spec: TurnSpec, resume: Resume, turn: _Turn) -> tuple[int, ChatAgentState]:
    """Where the paused turn begins, and the state that it was in when it was paused."""
    state = _initial_state(spec)
    before = state["messages"][:-1]
    outputs = {m["tool_call_id"]: m["content"] for m in resume.messages if m["role"] == "tool"}
    calls = [_pending_call(call, turn) for m in resume.messages for call in m.get("tool_calls") or ()]
    left = [call for call in calls if call.id not in outputs]
    turn.announced.update(call.id for call in calls)
    return len(before), {
        **state,
        "messages": before + resume.messages,
        "current_input": text_of(resume.messages[0]["content"]),
        "tool_calls": [msgspec.structs.asdict(call) for call in left],
        "tool_results": [
            _record(call, outputs[call.id], not outputs[call.id].startswith("error: "))
            for call in calls
            if call.id in outputs
        ],
        "iteration": sum("tool_calls" in m for m in resume.messages) - bool(left),
    }


def _pending_call(call: dict[str, Any], turn: _Turn) -> PendingCall:
    """A call that is read from messages, under the name that its tool has here."""
    function = call["function"]
    return turn.toolbox.read(AssembledCall(call["id"], function["name"], function["arguments"]))


def _record(call: PendingCall, output: str, ok: bool) -> dict[str, Any]:
    return {"id": call.id, "tool": call.tool, "input": call.input, "output": output, "ok": ok}


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
    """Ask the model: it answers, or asks for tools. A turn that goes on after a pause has asked before."""
    if state["tool_calls"]:
        return {"trace": [{"node": "route", "tools": [call["tool"] for call in state["tool_calls"]]}]}
    return await _ask("route", state, _turn(config))


async def execute_tool(state: ChatAgentState, config: RunnableConfig) -> dict[str, Any]:
    """Run all pending tool calls side by side, but for those that wait for a human: they pause the turn."""
    turn = _turn(config)
    pending = [PendingCall(**call) for call in state["tool_calls"]]
    for call in pending:
        if call.id not in turn.announced:
            turn.announced.add(call.id)
            turn.emit(ToolCall(call.id, call.tool, call.input, state["iteration"]))
    questions = {
        call.id: question
        for call in pending
        if call.id not in turn.answers and (question := turn.toolbox.question(call))
    }
    ready = [call for call in pending if call.id not in questions]
    if turn.journal is not None and ready:
        await turn.journal.begin(state["messages"][turn.begins :], [call.id for call in ready])
    results = await turn.toolbox.run(ready, state["iteration"], turn.emit, turn.answers, turn.keep)
    if questions:
        turn.pending = next(iter(questions.values()))
        turn.emit(RequiresAction(turn.pending.question_id, turn.pending.kind, turn.pending.text))
    return {
        "messages": with_results(state["messages"], [_tool_message(result) for result in results]),
        "tool_calls": [],
        "tool_results": [
            _record(call, result.output, result.ok) for call, result in zip(ready, results, strict=True)
        ],
        "iteration": state["iteration"] + (not questions),
        "trace": [{"node": "execute_tool", "tools": [call.tool for call in ready]}],
    }


async def process_result(state: ChatAgentState, config: RunnableConfig) -> dict[str, Any]:
    """Ask the model again, now that it has the results; at the cap without tools, so that it answers."""
    turn = _turn(config)
    if turn.pending is not None:
        return {"trace": [{"node": "process_result", "tools": []}]}
    turn.iteration_limit = state["iteration"] >= state["max_tool_iterations"]
    return await _ask("process_result", state, turn)


def _turn(config: RunnableConfig) -> _Turn:
    turn = config["configurable"][TURN]
    assert isinstance(turn, _Turn)
    return turn


async def _ask(node: str, state: ChatAgentState, turn: _Turn) -> dict[str, Any]:
    before = turn.calls.usage
    if turn.budget is not None:
        await turn.budget.look(state["messages"], turn.toolbox.schemas)
    request = _request(state, turn)
    reply = await turn.calls.ask(request, lambda: _request(state, turn))
    turn.finish = reply.finish
    if turn.budget is not None and reply.usage is not None and not turn.calls.fell_back:
        turn.budget.compare(request.messages, request.tools, reply.usage)
    pending = _with_new_ids([turn.toolbox.read(call) for call in reply.tool_calls], state["messages"])
    after = turn.calls.usage
    return {
        "messages": [*state["messages"], _assistant_message(reply, pending, state["iteration"], turn)],
        "tool_calls": [msgspec.structs.asdict(call) for call in pending],
        "trace": [{"node": node, "tools": [call.tool for call in pending]}],
        "total_input_tokens": after.input_tokens - before.input_tokens,
        "total_output_tokens": after.output_tokens - before.output_tokens,
        "model": turn.calls.route.model_name,
    }


def _request(state: ChatAgentState, turn: _Turn) -> Request:
    schemas, last = turn.toolbox.schemas, turn.iteration_limit
    messages = with_images(state["messages"], turn.toolbox.images)
    if turn.budget is not None:
        messages = turn.budget.fit(messages, schemas, current=turn.begins, max_tokens=turn.max_tokens)
    request = Request(
        messages=messages,
        tools=None if last else turn.toolbox.offered or None,
        round=state["iteration"] if turn.stream else None,
        may_be_empty=last,
    )
    if turn.calls.native:
        return request
    return replace(
        request, messages=in_words(request.messages, schemas, last=last), tools=None, prompted=schemas or None
    )


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
        if text and turn.calls.native:
            turn.emit(Preamble(text, round_))
        return {
            "role": "assistant",
            "content": text or None,
            "tool_calls": [_openai_call(call, turn.toolbox.sent_name(call.tool)) for call in pending],
        }
    if not text.strip():
        text += LIMIT_ANSWER
        if turn.stream:
            turn.emit(Token(LIMIT_ANSWER, round_))
    return {"role": "assistant", "content": text}


def _openai_call(call: PendingCall, name: str) -> dict[str, Any]:
    """The call as providers accept it back, which they do not always do with what the model wrote."""
    return {
        "id": call.id,
        "type": "function",
        "function": {
            "name": name,
            "arguments": msgspec.json.encode(call.input).decode(),
        },
    }


def _tool_message(result: ToolResult) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": result.id, "content": result.output}
