"""Runs the tools that a model asked for. Whatever goes wrong becomes a result that the model can read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from pydantic import BaseModel

from aiforge.core.deltas import AssembledCall
from aiforge.core.events import Event, ToolCall, ToolResult
from aiforge.tools.binding import BoundTool

LONGEST_OUTPUT: Final = 64_000
"""Characters of a tool's output that the model gets to see."""


class PendingCall(msgspec.Struct, frozen=True):
    """One call of a model, read: `problem` says why it cannot be executed."""

    id: str
    tool: str
    input: dict[str, Any]
    problem: str | None = None


def read_call(call: AssembledCall) -> PendingCall:
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError) as error:
        return PendingCall(call.id, call.name, {}, f"the arguments are not valid JSON: {error}")
    if not isinstance(arguments, dict):
        return PendingCall(call.id, call.name, {}, "the arguments must be a JSON object")
    return PendingCall(call.id, call.name, arguments)


class Toolbox:
    """The tools of one turn, each call limited to `timeout` seconds."""

    def __init__(self, tools: Sequence[BoundTool], timeout: float) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._timeout = timeout
        self.schemas = [tool.schema for tool in tools]

    async def run(
        self, calls: Sequence[PendingCall], round_: int, emit: Callable[[Event], None]
    ) -> list[ToolResult]:
        """The results in the order of the calls, which run side by side."""
        for call in calls:
            emit(ToolCall(call.id, call.tool, call.input, round_))
        return await asyncio.gather(*(self._run(call, round_, emit) for call in calls))

    async def _run(self, call: PendingCall, round_: int, emit: Callable[[Event], None]) -> ToolResult:
        output, ok = await self._outcome(call)
        result = ToolResult(call.id, call.tool, _limited(output), ok, round_)
        emit(result)
        return result

    async def _outcome(self, call: PendingCall) -> tuple[str, bool]:
        tool = self._tools.get(call.tool)
        if tool is None:
            return f"error: there is no tool {call.tool!r}; there are {', '.join(self._tools)}", False
        if call.problem is not None:
            return f"error: {call.problem}", False
        task = asyncio.create_task(_guarded(tool, call.input))
        task.add_done_callback(_retrieve)
        try:
            done, _ = await asyncio.wait([task], timeout=self._timeout)
        finally:
            task.cancel()
        if not done:
            return f"error: the tool did not return within {self._timeout:g} s", False
        if task.cancelled():
            return "error: the tool was cancelled", False
        error = task.exception()
        if error is not None:
            return f"error: {type(error).__name__}: {error}".removesuffix(": "), False
        return as_text(task.result()), True


async def _guarded(tool: BoundTool, arguments: dict[str, Any]) -> Any:
    """A tool that calls `sys.exit` ends itself, not the event loop that runs all turns."""
    try:
        return await tool.call(arguments)
    except SystemExit as error:
        raise RuntimeError("the tool tried to end the process") from error


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Take note of the error of a call that nobody waits for any more, or asyncio logs it."""
    if not task.cancelled():
        task.exception()


def as_text(output: Any) -> str:
    """A tool's return value as the model reads it."""
    if isinstance(output, str):
        return output
    if isinstance(output, BaseModel):
        return output.model_dump_json()
    if isinstance(output, dict | list | tuple | None):
        return json.dumps(output, ensure_ascii=False, default=str)
    return str(output)


def _limited(output: str) -> str:
    """Encodable, and not longer than the model should read."""
    clean = output.encode("utf-8", "replace").decode()
    if len(clean) <= LONGEST_OUTPUT:
        return clean
    return f"{clean[:LONGEST_OUTPUT]}\n[cut: {LONGEST_OUTPUT} of {len(clean)} characters]"
