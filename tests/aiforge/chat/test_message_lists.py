"""Whatever happens to turns, no provider ever gets a message list that it would refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, PrivateAttr

from aiforge import ChatAgent, ProviderError
from aiforge.core.delta_chat import DeltaChat
from aiforge.core.deltas import (
    CallRequest,
    Completion,
    Delta,
    FinishDelta,
    TextDelta,
    ToolCallDelta,
    UsageDelta,
    assemble,
)
from aiforge.core.types import Usage
from aiforge.modules.chat.memory import recent_from, trim
from aiforge.testing import check_messages
from aiforge.tools.tool import Image
from tests.aiforge.chat.support import DuckTool, run


@dataclass(frozen=True)
class Call:
    """What the model asks of a tool."""

    name: str
    arguments: str
    id: str | None


@dataclass(frozen=True)
class Said:
    """One reply of the model and how it ends; "stuck" is when the caller gives up."""

    text: str
    calls: tuple[Call, ...] = ()
    end: Literal["well", "fails", "stuck"] = "well"


CALLS = st.builds(
    Call,
    name=st.sampled_from(["good", "bad", "draw", "not there", "", "dots.and spaces"]),
    arguments=st.sampled_from(['{"a": 1}', "", "{", "[]", "null", '{"a": "é\\u2028"}']),
    id=st.sampled_from([None, "same", "call_0", "other"]),
)
REPLIES = st.builds(
    Said,
    text=st.sampled_from(
        ["", " ", "text", "text \n", 'TOOL_CALL: good {"a": 1}', '{"tool": "not there", "input": {}} ']
    ),
    calls=st.lists(CALLS, max_size=3).map(tuple),
    end=st.sampled_from(["well", "well", "well", "fails", "stuck"]),
)
TURNS = st.lists(st.tuples(st.booleans(), st.lists(REPLIES, min_size=1, max_size=4)), min_size=1, max_size=8)


class Planned(DeltaChat):
    """Says what is planned for the turn, then a last word; checks every list that it is sent."""

    model_name: str = "planned"
    plan: list[Said] = Field(default_factory=list)
    _caller: asyncio.Task[None] | None = PrivateAttr(default=None)

    @property
    def _llm_type(self) -> str:
        return "planned"

    async def stream_deltas(self, request: CallRequest) -> AsyncGenerator[Delta, None]:
        check_messages(request.messages, "openai")
        check_messages(request.messages, "anthropic")
        said = self.plan.pop(0) if self.plan else Said("The end.")
        if said.text:
            yield TextDelta(said.text)
        for index, call in enumerate(said.calls):
            yield ToolCallDelta(index, call.id, call.name, call.arguments)
        if said.end == "fails":
            raise ProviderError("planned failure")
        if said.end == "stuck":
            assert self._caller is not None
            self._caller.cancel()
            await asyncio.Event().wait()
        yield UsageDelta(Usage(1, 1))
        yield FinishDelta("stop")

    async def complete(self, request: CallRequest) -> Completion:
        deltas = [delta async for delta in self.stream_deltas(request)]
        return Completion(
            text="".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
            tool_calls=assemble(delta for delta in deltas if isinstance(delta, ToolCallDelta)),
            usage=Usage(1, 1),
            finish_reason="stop",
            model=self.model_name,
        )


async def fail(arguments: dict[str, Any]) -> str:
    raise ValueError


async def answer(arguments: dict[str, Any]) -> str:
    return "good"


async def draw(arguments: dict[str, Any]) -> Image:
    return Image("a drawing", "image/png", b"pixels")


@settings(max_examples=150)
@given(
    turns=TURNS,
    memory=st.sampled_from(["buffer", "summary", "none"]),
    memory_k=st.integers(1, 9),
    cap=st.integers(1, 3),
    with_tools=st.booleans(),
    native_tools=st.sampled_from([None, False]),
    window=st.sampled_from([None, 150, 400]),
)
def test_every_list_that_is_sent_is_valid(
    *,
    turns: list[tuple[bool, list[Said]]],
    memory: str,
    memory_k: int,
    cap: int,
    with_tools: bool,
    native_tools: bool | None,
    window: int | None,
) -> None:
    model = Planned()
    agent = ChatAgent(
        "Be kind.",
        tools=[DuckTool("good", answer), DuckTool("bad", fail), DuckTool("draw", draw)]
        if with_tools
        else None,
        memory=memory,
        memory_k=memory_k,
        max_tool_iterations=cap,
        llm=model,
        native_tools=native_tools,
        MAX_RETRIES=0,
        MAX_INPUT_TOKENS=window,
    )

    async def one(stream: bool, number: int) -> None:
        if stream:
            async for _ in agent.chat_stream(f"question {number}"):
                pass
        else:
            await agent.achat(f"question {number}")

    async def scenario() -> None:
        for number, (stream, plan) in enumerate(turns):
            model.plan[:] = plan
            task = asyncio.create_task(one(stream, number))
            model._caller = task
            with suppress(ProviderError, asyncio.CancelledError):
                await task
        model.plan.clear()
        assert (await agent.achat("The last one?")).message == "The end."

    run(scenario())
    assert agent.cost_tracker.calls > 0


@given(
    shape=st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=6),
    k=st.integers(1, 12),
)
def test_a_window_never_separates_a_turn_from_its_question(shape: list[list[int]], k: int) -> None:
    messages: list[dict[str, Any]] = []
    for rounds in shape:
        messages.append({"role": "user", "content": "q"})
        for count in filter(None, rounds):
            ids = [f"id{len(messages)}_{n}" for n in range(count)]
            function = {"name": "f", "arguments": "{}"}
            calls = [{"id": each, "type": "function", "function": function} for each in ids]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            messages.extend({"role": "tool", "tool_call_id": each, "content": "r"} for each in ids)
        messages.append({"role": "assistant", "content": "a"})

    window = trim(messages, k)
    assert len(window) <= k
    assert window == messages[len(messages) - len(window) :]
    check_messages([*window, {"role": "user", "content": "next"}], "anthropic")

    kept = messages[recent_from(messages, k) :]
    assert len(kept) >= min(k, len(messages))
    check_messages([*kept, {"role": "user", "content": "next"}], "anthropic")
