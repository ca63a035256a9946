"""The bridge: one loop for the whole process, which nothing that runs on it may end."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, NoReturn

import pytest

from aiforge import ChatAgent, current_request
from aiforge.core import bridge
from aiforge.testing import ScriptedModel, ToolCall
from tests.aiforge.chat.support import DuckTool, run, until


def elsewhere(act: Callable[[], Any]) -> Any:
    """What `act` returns or raises, in a thread of its own: a bridge that is dead would block this one."""
    ended: list[Any] = []

    def work() -> None:
        try:
            ended.append(act())
        except BaseException as error:  # noqa: BLE001  # compared by the test
            ended.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    assert ended, "it hangs"
    return ended[0]


def leave(*_: object) -> NoReturn:
    sys.exit(3)


def interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


async def leave_awaited(*_: object) -> NoReturn:
    sys.exit(3)


async def interrupt_awaited(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def ask_again() -> None:
    """Another agent, whose calls the same loop runs."""
    answer = elsewhere(lambda: ChatAgent(llm=ScriptedModel(replies=["still here"])).chat("Hello"))
    assert answer.message == "still here"


@pytest.mark.parametrize("end", [leave_awaited, interrupt_awaited])
def test_code_that_ends_the_process_ends_its_own_call(end: Callable[[], Any]) -> None:
    waiting = threading.Event()

    async def other() -> str:
        waiting.set()
        await until(done.is_set)
        return "other"

    done = threading.Event()
    others: list[str] = []
    beside = threading.Thread(target=lambda: others.append(bridge.run(other())), daemon=True)
    beside.start()
    assert waiting.wait(10)
    assert isinstance(elsewhere(lambda: bridge.run(end())), SystemExit | KeyboardInterrupt)
    done.set()
    beside.join(10)
    assert others == ["other"]
    ask_again()


@pytest.mark.parametrize("end", [leave, interrupt, leave_awaited, interrupt_awaited])
def test_a_tool_that_ends_the_process_gives_an_error(end: Callable[..., Any]) -> None:
    model = ScriptedModel(replies=[[ToolCall("end")], "Sorry."])
    response = elsewhere(lambda: ChatAgent(llm=model, tools=[DuckTool("end", end)]).chat("Go."))
    assert response.message == "Sorry."
    assert response.tool_calls[0].output.startswith("error: RuntimeError")
    ask_again()


@pytest.mark.parametrize("end", [leave, interrupt])
def test_a_hook_that_ends_the_process_ends_its_turn(end: Callable[..., Any]) -> None:
    agent = ChatAgent(llm=ScriptedModel(replies=["ok"], repeat_last=True), on_event=end)
    assert isinstance(elsewhere(lambda: agent.chat("Hello")), RuntimeError)
    assert isinstance(elsewhere(lambda: list(agent.run_stream("Hello"))), RuntimeError)
    batch = elsewhere(lambda: agent.run_batch(["a", "b"]))
    assert [item.error_class for item in batch.failed] == ["RuntimeError", "RuntimeError"]
    ask_again()


@pytest.mark.parametrize("end", [leave, interrupt, leave_awaited, interrupt_awaited])
def test_a_dispatcher_that_ends_the_process_leaves_its_action_pending(end: Callable[..., Any]) -> None:
    tool = DuckTool("act", lambda arguments: current_request().act("mail").id)
    model = ScriptedModel(replies=[[ToolCall("act")], "Done."])
    agent = ChatAgent(llm=model, tools=[tool], actions=end)
    assert elsewhere(lambda: agent.chat("Go.")).message == "Done."
    assert [action.name for action in agent.pending_actions] == ["mail"]
    ask_again()


async def loop_of() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


async def loops(seen: list[Any], *, forever: bool = False) -> AsyncGenerator[int, None]:
    try:
        for number in range(3):
            seen.append(asyncio.get_running_loop())
            yield number
        if forever:
            await asyncio.Event().wait()
        raise LookupError("at its end")
    finally:
        seen.append("closed")


def test_calls_and_streams_run_on_the_bridge_whichever_loop_asks() -> None:
    home = bridge.run(loop_of())
    seen: list[Any] = []

    async def scenario() -> None:
        assert await bridge.there(loop_of()) is home
        stream = bridge.stream_there(loops(seen))
        assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(LookupError, match="at its end"):
            await anext(stream)

    run(scenario())
    bridge.run(scenario())
    assert seen == [home, home, home, "closed"] * 2


def test_a_stream_that_is_left_is_closed_there() -> None:
    seen: list[Any] = []

    async def scenario() -> None:
        async with aclosing(bridge.stream_there(loops(seen, forever=True))) as stream:
            assert await anext(stream) == 0
        await until(lambda: "closed" in seen)

    run(scenario())


def test_a_cancellation_reaches_the_bridge() -> None:
    ended: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def scenario() -> None:
        task = asyncio.create_task(bridge.there(hang()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario())

    async def wait() -> None:
        await until(lambda: ended == ["cancelled"] or not ended)

    run(wait())
