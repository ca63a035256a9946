"""Runs the tools that a model asked for. Whatever goes wrong becomes a result that the model can read.

Two kinds of calls wait for a human first: those of a tool with `approval=True`, and `ask_human`.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from pydantic import BaseModel

from aiforge.core import call_key
from aiforge.core.contained import contained
from aiforge.core.deltas import AssembledCall
from aiforge.core.events import Event, ToolResult
from aiforge.core.texts import encodable, words
from aiforge.modules.chat.images import described
from aiforge.modules.chat.prompted import valid_name
from aiforge.modules.chat.schemas import PendingQuestion
from aiforge.tools.binding import BoundTool, is_idempotent, needs_approval
from aiforge.tools.human import ASK_HUMAN
from aiforge.tools.tool import Image, ShippedTool

LONGEST_OUTPUT: Final = 64_000
"""Characters of a tool's output that the model gets to see."""


APPROVED: Final = frozenset({"approved", "yes"})


class PendingCall(msgspec.Struct, frozen=True):
    """One call of a model, read: `problem` says why it cannot be executed."""

    id: str
    tool: str
    input: dict[str, Any]
    problem: str | None = None


def read_call(call: AssembledCall, tool: str) -> PendingCall:
    """A call of `tool`, whatever the model calls it."""
    try:
        arguments = msgspec.json.decode(call.arguments.strip() or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        return PendingCall(call.id, tool, {}, f"the arguments are not valid JSON: {error}")
    if not isinstance(arguments, dict):
        return PendingCall(call.id, tool, {}, "the arguments must be a JSON object")
    return PendingCall(call.id, tool, arguments)


class Toolbox:
    """The tools of one turn, each call limited to `timeout` seconds and known to its tool by a key.

    `sees` tells whether the model can look at images; calls in `begun` were begun by an earlier attempt.
    """

    def __init__(
        self,
        tools: Sequence[BoundTool],
        timeout: float,
        turn_id: str,
        sees: Callable[[], bool],
        begun: Collection[str] = (),
    ) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._timeout = timeout
        self._turn_id = turn_id
        self._sees = sees
        self._begun = begun
        self.images: dict[str, Image] = {}
        """What calls have loaded for the model to look at, by their id."""
        self.schemas = [tool.schema for tool in tools]
        self._sent = _sent_names([tool.name for tool in tools])
        self._own = {sent: own for own, sent in self._sent.items()}

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The schemas for a provider's own tool calling, under names that every one accepts."""
        return [
            {**schema, "function": {**schema["function"], "name": self._sent[name]}}
            for name, schema in zip(self._tools, self.schemas, strict=True)
        ]

    def sent_name(self, name: str) -> str:
        """What a provider is told instead of this name, which the model may have made up."""
        return self._sent.get(name) or valid_name(name)

    def read(self, call: AssembledCall) -> PendingCall:
        """The call of the tool that the model means."""
        known = call.name in self._tools
        return read_call(call, call.name if known else self._own.get(call.name, call.name))

    async def run(
        self,
        calls: Sequence[PendingCall],
        round_: int,
        emit: Callable[[Event], None],
        answers: Mapping[str, str],
        keep: Callable[[ToolResult], Awaitable[None]],
    ) -> list[ToolResult]:
        """The results in the order of the calls, which run side by side; `keep` gets each at once.

        `answers` are those of humans by call id; calls that wait for one must not be among `calls`.
        """
        return await asyncio.gather(*(self._run(call, round_, emit, answers, keep) for call in calls))

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
        self,
        call: PendingCall,
        round_: int,
        emit: Callable[[Event], None],
        answers: Mapping[str, str],
        keep: Callable[[ToolResult], Awaitable[None]],
    ) -> ToolResult:
        output, ok = await self._outcome(call, answers)
        result = ToolResult(call.id, call.tool, _limited(output), ok, round_)
        await keep(result)
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
        work = _guarded(tool, copy.deepcopy(call.input))  # the record is of what was asked
        return await self._result(call, asyncio.create_task(work, context=context))

    def _problem(self, call: PendingCall, answers: Mapping[str, str]) -> str | None:
        """Why the call is not made."""
        tool = self._tools.get(call.tool)
        if tool is None:
            return f"there is no tool {call.tool!r}; there are {', '.join(self._tools)}"
        if call.problem is not None:
            return call.problem
        if call.id in self._begun and not is_idempotent(tool.source):
            return "this call was interrupted and may have completed; it was not made again"
        if _asks_human(tool):
            return None if call.id in answers else "the argument question must be a text that is not empty"
        if needs_approval(tool.source) and not allows(answers[call.id]):
            made = " again, and the first time it may have completed" if call.id in self._begun else ""
            return f"a human refused this call{made}: {answers[call.id]}".removesuffix(": ")
        return None

    async def _result(self, call: PendingCall, task: asyncio.Task[str | Image]) -> tuple[str, bool]:
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
            return f"error: {type(error).__name__}: {words(error)}".removesuffix(": "), False
        output = task.result()
        return self._loaded(call, output) if isinstance(output, Image) else (output, True)

    def _loaded(self, call: PendingCall, image: Image) -> tuple[str, bool]:
        if not self._sees():
            return "error: this model cannot look at images", False
        self.images[call.id] = image
        return described(image), True


def _sent_names(names: Sequence[str]) -> dict[str, str]:
    """A name for each that every provider accepts; those that are valid as they are keep theirs."""
    sent: dict[str, str] = {}
    for name in sorted(names, key=lambda name: name != valid_name(name)):
        wanted = candidate = valid_name(name)
        number = 1
        while candidate in sent.values():
            number += 1
            candidate = f"{wanted[:60]}_{number}"
        sent[name] = candidate
    return sent


def allows(answer: str) -> bool:
    """Whether this answer of a human lets a call run."""
    return answer.strip().lower() in APPROVED


def _asks_human(tool: BoundTool) -> bool:
    """A tool of one's own may have that name, too."""
    return tool.name == ASK_HUMAN and isinstance(tool.source, ShippedTool)


async def _guarded(tool: BoundTool, arguments: dict[str, Any]) -> str | Image:
    """What the tool returns, in words: to write it down can run the tool's code, too."""
    with contained("the tool"):
        output = await tool.call(arguments)
        return output if isinstance(output, Image) else as_text(output)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Take note of the error of a call that nobody waits for any more, or asyncio logs it."""
    if not task.cancelled():
        task.exception()


def as_text(output: Any) -> str:
    """A tool's return value as the model reads it; raises what its own code raises."""
    if isinstance(output, str):
        return output
    with suppress(Exception):  # not everything is JSON: keys that are no texts, circles, objects
        if isinstance(output, BaseModel):
            return output.model_dump_json()
        if isinstance(output, dict | list | tuple | None):
            return json.dumps(output, ensure_ascii=False, default=str)
    return str(output)


def _limited(output: str) -> str:
    """Encodable, and not longer than the model should read."""
    clean = encodable(output)
    if len(clean) <= LONGEST_OUTPUT:
        return clean
    return f"{clean[:LONGEST_OUTPUT]}\n[cut: {LONGEST_OUTPUT} of {len(clean)} characters]"
