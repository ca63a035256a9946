"""Runs the tools that a model asked for. Whatever goes wrong becomes a result that the model can read.

Two kinds of calls wait for a human first: those of a tool with `approval=True`, and `ask_human`.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from pydantic import BaseModel

from aiforge.core import call_key
from aiforge.core.deltas import AssembledCall
from aiforge.core.events import Event, ToolResult
from aiforge.modules.chat.schemas import PendingQuestion
from aiforge.tools.binding import BoundTool, needs_approval
from aiforge.tools.human import ASK_HUMAN
from aiforge.tools.tool import ShippedTool

LONGEST_OUTPUT: Final = 64_000
"""Characters of a tool's output that the model gets to see."""


APPROVED: Final = frozenset({"approved", "yes"})


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
    """The tools of one turn, each call limited to `timeout` seconds and known to its tool by a key."""

    def __init__(self, tools: Sequence[BoundTool], timeout: float, turn_id: str) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._timeout = timeout
        self._turn_id = turn_id
        self.schemas = [tool.schema for tool in tools]
        self.names = [tool.name for tool in tools]

    async def run(
        self,
        calls: Sequence[PendingCall],
        round_: int,
        emit: Callable[[Event], None],
        answers: Mapping[str, str],
    ) -> list[ToolResult]:
        """The results in the order of the calls, which run side by side.

        `answers` are those of humans by call id; calls that wait for one must not be among `calls`.
        """
        return await asyncio.gather(*(self._run(call, round_, emit, answers) for call in calls))

    def question(self, call: PendingCall) -> PendingQuestion | None:
        """What a human has to say before this call, None when nobody has to be asked."""
        tool = self._tools.get(call.tool)
        if tool is None or call.problem is not None:
            return None
        if _asks_human(tool):
            text = call.input.get("question")
            if not isinstance(text, str) or not text.strip():
                return None
            return PendingQuestion(
                question_id=secrets.token_hex(8), kind="question", text=text, call_id=call.id
            )
        if not needs_approval(tool.source):
            return None
        return PendingQuestion(
            question_id=secrets.token_hex(8),
            kind="approval",
            text=f"May {call.tool} run with {json.dumps(call.input, ensure_ascii=False)}?",
            tool=call.tool,
            input=call.input,
            call_id=call.id,
        )

    async def _run(
        self, call: PendingCall, round_: int, emit: Callable[[Event], None], answers: Mapping[str, str]
    ) -> ToolResult:
        output, ok = await self._outcome(call, answers)
        result = ToolResult(call.id, call.tool, _limited(output), ok, round_)
        emit(result)
        return result

    async def _outcome(self, call: PendingCall, answers: Mapping[str, str]) -> tuple[str, bool]:
        problem = self._problem(call, answers)
        if problem is not None:
            return f"error: {problem}", False
        tool = self._tools[call.tool]
        if _asks_human(tool):
            return answers[call.id], True
        self._turn_id = self._turn_id or secrets.token_hex(8)
        context = contextvars.copy_context()
        context.run(call_key.running.set, f"{self._turn_id}:{call.id}")
        return await self._result(asyncio.create_task(_guarded(tool, call.input), context=context))

    def _problem(self, call: PendingCall, answers: Mapping[str, str]) -> str | None:
        """Why the call is not made."""
        tool = self._tools.get(call.tool)
        if tool is None:
            return f"there is no tool {call.tool!r}; there are {', '.join(self._tools)}"
        if call.problem is not None:
            return call.problem
        if _asks_human(tool):
            return None if call.id in answers else "the argument question must be a text that is not empty"
        if needs_approval(tool.source) and answers[call.id].strip().lower() not in APPROVED:
            return f"a human refused this call: {answers[call.id]}".removesuffix(": ")
        return None

    async def _result(self, task: asyncio.Task[Any]) -> tuple[str, bool]:
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


def _asks_human(tool: BoundTool) -> bool:
    """A tool of one's own may have that name, too."""
    return tool.name == ASK_HUMAN and isinstance(tool.source, ShippedTool)


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
