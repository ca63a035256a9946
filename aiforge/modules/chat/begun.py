"""A turn under way: what was asked, where its conversation stands, and what the conversation will gain."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aiforge.core.base import CallLog
from aiforge.core.events import Event, Message, ToolResult
from aiforge.core.request import ChatRequest
from aiforge.modules.chat.conversation import Conversation
from aiforge.modules.chat.entries import PausedEntry, Tokens, TurnEntry, packed
from aiforge.modules.chat.memory import STOPPED, settled, with_results
from aiforge.modules.chat.toolbox import allows
from aiforge.modules.chat.turn import Resume


@dataclass(frozen=True, slots=True)
class Ask:
    """What a caller asks for, checked."""

    message: str
    system_prompt: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a human said to the question that a turn waits for."""

    question_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Begun:
    """A turn under way, and what is to be known of it however it ends. `started` is of `perf_counter`."""

    ask: Ask
    answer: Answer | None
    paused: PausedEntry | None
    """The turn as it waited before, if it did."""
    conversation: Conversation
    request: ChatRequest
    log: CallLog
    started: float
    events: list[Event] = field(default_factory=list)
    """What a store will keep; empty without one."""


async def begin(asked: Ask | Answer, conversation: Conversation, log: CallLog, started: float) -> Begun:
    """See where the conversation stands. Raises ValueError for a question that is not open."""
    await conversation.catch_up()
    if isinstance(asked, Ask):
        request = ChatRequest(asked.message, conversation.id, secrets.token_hex(8), asked.metadata)
        return Begun(asked, None, None, conversation, request, log, started)
    paused = conversation.paused
    if paused is None or paused.question["question_id"] != asked.question_id:
        raise ValueError(f"no question {asked.question_id!r} waits for an answer in this conversation")
    ask = Ask(paused.message, paused.system_prompt, paused.metadata)
    actions = list(paused.actions)
    numbers = itertools.count(len(actions))
    request = ChatRequest(ask.message, conversation.id, paused.turn_id, ask.metadata, actions, numbers)
    return Begun(ask, asked, paused, conversation, request, log, started)


class Allowed:
    """The journal of a turn in which a human has let a call run: however the turn ends, it ran once.

    The conversation knows of it before it is made, so that nobody else can make it, too, and keeps its
    result before the model is asked.
    """

    def __init__(self, begun: Begun, paused: PausedEntry) -> None:
        self._begun = begun
        self._paused = paused
        self._call: str = paused.question["call_id"]
        self._messages: list[dict[str, Any]] = []

    async def begin(self, messages: list[dict[str, Any]], calls: list[str]) -> None:
        if self._call in calls:
            self._messages = messages
            await self._keep()

    async def end(self, message: dict[str, Any]) -> None:
        if message["tool_call_id"] == self._call:
            round_ = sum("tool_calls" in earlier for earlier in self._messages) - 1
            output, tool = message["content"], self._paused.question["tool"]
            self._messages = with_results(self._messages, [message])
            # It is told of once it is kept.
            await self._keep(ToolResult(self._call, tool, output, not output.startswith("error: "), round_))

    async def _keep(self, *told: Event) -> None:
        entry = paused_entry(self._begun, self._messages, self._paused.question)
        events = [*entry.events, *told] if self._begun.conversation.store is not None else []
        made = msgspec.structs.replace(entry, events=events, begun=[*{*self._paused.begun, self._call}])
        await self._begun.conversation.pause(made)


def resume_of(begun: Begun) -> tuple[Resume | None, Allowed | None]:
    """How a turn that waited goes on, and its journal, if it needs one."""
    paused = begun.paused
    if paused is None or begun.answer is None:
        return None, None
    answers = {paused.question["call_id"]: begun.answer.text}
    runs = paused.question["kind"] == "approval" and allows(begun.answer.text)
    return Resume(paused.messages, answers, paused.begun), Allowed(begun, paused) if runs else None


def turn_entry(begun: Begun, messages: list[dict[str, Any]], message: Message) -> TurnEntry:
    """What the conversation gains by a turn that ended well."""
    return TurnEntry(events=_packed(begun, [*begun.events, message]), **_common(begun, messages))


def stopped_entry(begun: Begun, message: Message) -> TurnEntry:
    """What it gains by one whose reader left: what was asked and seen, and a call that a human allowed."""
    messages, actions = [{"role": "user", "content": begun.ask.message}], []
    if begun.paused is not None:
        kept = begun.conversation.paused or begun.paused
        messages, actions = settled(kept.messages, started=kept.begun), kept.actions
    partial = {"role": "assistant", "content": message.text, STOPPED: True}
    return msgspec.structs.replace(turn_entry(begun, [*messages, partial], message), actions=actions)


def paused_entry(begun: Begun, messages: list[dict[str, Any]], question: dict[str, Any]) -> PausedEntry:
    """What it gains by one that waits for a human."""
    return PausedEntry(
        events=_packed(begun, begun.events),
        question=question,
        message=begun.ask.message,
        system_prompt=begun.ask.system_prompt,
        **_common(begun, messages),
    )


def _packed(begun: Begun, events: list[Event]) -> list[Event | Tokens]:
    """These events behind those from before the pause; without a store nobody will ask for them."""
    if begun.conversation.store is None:
        return []
    return [*(begun.paused.events if begun.paused is not None else ()), *packed(events)]


def _common(begun: Begun, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """What every entry says of its turn."""
    conversation, request = begun.conversation, begun.request
    return {
        "at": time.time(),
        "turn": conversation.turn + 1 if begun.paused is None else begun.paused.turn,
        "turn_id": request.turn_id,
        "messages": messages,
        "summarized": conversation.summarized(),
        "actions": list(request.actions),
        "metadata": dict(request.metadata),
    }
