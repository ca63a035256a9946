"""Runs the turns of one agent: from what was asked to what its conversation gains."""

from __future__ import annotations

import inspect
import itertools
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Final, TypeAlias

from langchain_core.language_models import BaseChatModel

from aiforge.core.base import CallLog
from aiforge.core.cost import CostTracker
from aiforge.core.deltas import CallParams
from aiforge.core.events import Error, Event, Message
from aiforge.core.prompts import resolve_prompt
from aiforge.core.request import Action, ChatRequest, serving
from aiforge.core.router import own_prices
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import AIForgeError
from aiforge.modules.chat.agent import TurnResult, TurnSpec, run_turn
from aiforge.modules.chat.budget import Budget
from aiforge.modules.chat.checks import takes_two
from aiforge.modules.chat.conversation import Conversation
from aiforge.modules.chat.entries import PausedEntry, TurnEntry, packed
from aiforge.modules.chat.memory import Memory
from aiforge.modules.chat.schemas import ChatResponse
from aiforge.modules.chat.summary import shorten
from aiforge.modules.chat.turn import Resume
from aiforge.tools.binding import BoundTool

OnEvent: TypeAlias = Callable[[Event], object] | Callable[[Event, ChatRequest], object]
Dispatcher: TypeAlias = Callable[[Action], Awaitable[object] | object]
Emit: TypeAlias = Callable[[Event], None]

_logger: Final = logging.getLogger("aiforge")


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
class Finished:
    """A turn that ended well, or waits for a human, and that its conversation does not know yet."""

    ask: Ask
    paused: PausedEntry | None
    """The turn as it waited before, if it did."""
    conversation: Conversation
    request: ChatRequest
    result: TurnResult
    log: CallLog
    events: list[Event]
    latency_ms: float


@dataclass(kw_only=True)
class Turns:
    """How one agent runs its turns. `hook` comes from `hook_of`."""

    model: BaseChatModel
    provider: str
    model_name: str
    settings: AIForgeSettings
    system_prompt: str
    tools: list[BoundTool]
    native_tools: bool
    params: CallParams
    max_tool_iterations: int
    memory_mode: str
    budget: Budget
    tracker: CostTracker
    hook: Callable[[Event, ChatRequest], object]
    dispatcher: Dispatcher | None
    last_response: ChatResponse | None = None
    failed_summaries: int = 0

    async def run(
        self,
        asked: Ask | Answer,
        conversation: Conversation,
        emit: Emit,
        *,
        stream: bool,
        log: CallLog | None = None,
    ) -> Finished:
        """Take the turn to its answer or to a question; nobody is told of either before `commit`.

        Raises ValueError for an answer to a question that is not open.
        """
        started = perf_counter()
        log = log or CallLog(self.tracker)
        await conversation.catch_up()
        paused = _waiting(conversation, asked) if isinstance(asked, Answer) else None
        ask = asked if isinstance(asked, Ask) else _ask_of(paused)
        request = _request(ask, conversation, paused)
        events: list[Event] = []
        tell = self._teller(emit, request, events if conversation.store is not None else None)
        try:
            with serving(request):
                prompt = resolve_prompt(ask.system_prompt, default=self.system_prompt)
                if paused is None:
                    await self._shorten(conversation, prompt, ask.message, tell, log)
                spec = self._spec(ask, conversation.memory, prompt, request.turn_id, stream=stream)
                if isinstance(asked, Answer) and paused is not None:
                    answers = {paused.question["call_id"]: asked.text}
                    spec = replace(spec, resume=Resume(paused.messages, answers))
                result = await run_turn(spec, emit=tell, recorder=log)
        except AIForgeError as error:
            self.hook(error_event(error), request)
            raise
        latency = (perf_counter() - started) * 1000
        return Finished(ask, paused, conversation, request, result, log, events, latency)

    async def commit(self, finished: Finished) -> ChatResponse:
        """Make the turn part of its conversation, and only then tell of it."""
        response = self.response(finished)
        conversation, request = finished.conversation, finished.request
        entry = _entry(finished, response)
        try:
            if isinstance(entry, PausedEntry):
                await conversation.pause(entry)
            else:
                await conversation.commit(entry)
        except AIForgeError as error:
            self.hook(error_event(error), request)
            raise
        self.last_response = response
        if isinstance(entry, TurnEntry):
            self.hook(message_event(response), request)
            await self.dispatch(conversation, entry.actions)
        return response

    async def run_alone(self, ask: Ask, conversation: Conversation, log: CallLog) -> ChatResponse:
        """A turn in a conversation that nobody else sees."""
        finished = await self.run(ask, conversation, ignore, stream=False, log=log)
        response = self.response(finished)
        if response.status == "completed":
            self.hook(message_event(response), finished.request)
            await self.dispatch(conversation, finished.request.actions)
        return response

    async def dispatch(self, conversation: Conversation, actions: list[Action]) -> int:
        """Hand the actions on. One that fails stays pending: its turn is committed all the same."""
        if self.dispatcher is None or not actions:
            return 0
        dispatched: list[str] = []
        try:
            for action in actions:
                dispatched.extend([action.id] if await self._dispatched(action) else [])
        finally:
            await conversation.delivered(dispatched)
        return len(dispatched)

    async def _dispatched(self, action: Action) -> bool:
        assert self.dispatcher is not None
        try:
            outcome = self.dispatcher(action)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:  # the caller's own code: it may raise anything, and the turn stands
            _logger.warning("action %s (%s) is still pending", action.id, action.name, exc_info=True)
            return False
        return True

    def response(self, finished: Finished) -> ChatResponse:
        result, log = finished.result, finished.log
        usages = [call.usage for call in log.calls if call.usage is not None]
        return ChatResponse(
            message=result.answer,
            conversation_id=finished.conversation.id,
            tool_calls=result.tool_calls,
            iterations=result.iterations,
            memory_mode=self.memory_mode,
            cost=float(log.cost),
            input_tokens=sum(usage.input_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
            model=result.model,
            trace_id=finished.request.turn_id,
            latency_ms=finished.latency_ms,
            iteration_limit=result.iteration_limit,
            status="completed" if result.pending is None else "requires_action",
            question=result.pending,
            priced=log.unpriced == 0,
            unpriced_calls=log.unpriced,
            calls=log.calls,
        )

    def _spec(self, ask: Ask, memory: Memory, system_prompt: str, turn_id: str, *, stream: bool) -> TurnSpec:
        return TurnSpec(
            message=ask.message,
            history=memory.window(),
            summary=memory.summary,
            system_prompt=system_prompt,
            model=self.model,
            provider=self.provider,
            model_name=self.model_name,
            tools=self.tools,
            native_tools=self.native_tools,
            params=self.params,
            max_tool_iterations=self.max_tool_iterations,
            stream=stream,
            budget=self.budget,
            turn_id=turn_id,
            settings=self.settings,
            metadata=ask.metadata,
        )

    def _teller(self, emit: Emit, request: ChatRequest, events: list[Event] | None) -> Emit:
        """Who is told of an event: the stream's reader, the hook, and the list that a store will keep."""
        hook = self.hook
        if hook is unheard and events is None:
            return emit

        def tell(event: Event) -> None:
            hook(event, request)
            if events is not None:
                events.append(event)
            emit(event)

        return tell

    async def _shorten(
        self, conversation: Conversation, prompt: str, message: str, emit: Emit, log: CallLog
    ) -> None:
        """Summarise what is old, if there is enough of it. A failure costs the summary, not the turn."""
        replaced = await shorten(
            conversation.memory,
            self.budget,
            system_prompt=prompt,
            message=message,
            tools=[tool.schema for tool in self.tools],
            model=self.model,
            provider=self.provider,
            model_name=self.model_name,
            emit=emit,
            recorder=log,
            prices=own_prices(self.settings),
        )
        if replaced is None:
            self.failed_summaries += 1
        elif replaced:
            conversation.shortened(replaced)


def _waiting(conversation: Conversation, answer: Answer) -> PausedEntry:
    paused = conversation.paused
    if paused is None or paused.question["question_id"] != answer.question_id:
        raise ValueError(f"no question {answer.question_id!r} waits for an answer in this conversation")
    return paused


def _ask_of(paused: PausedEntry | None) -> Ask:
    assert paused is not None
    return Ask(paused.message, paused.system_prompt, paused.metadata)


def _request(ask: Ask, conversation: Conversation, paused: PausedEntry | None) -> ChatRequest:
    if paused is None:
        return ChatRequest(ask.message, conversation.id, secrets.token_hex(8), ask.metadata)
    actions = list(paused.actions)
    numbers = itertools.count(len(actions))
    return ChatRequest(ask.message, conversation.id, paused.turn_id, ask.metadata, actions, numbers)


def _entry(finished: Finished, response: ChatResponse) -> TurnEntry | PausedEntry:
    """What the conversation's log gains."""
    conversation, request, paused = finished.conversation, finished.request, finished.paused
    events, before = finished.events, [] if paused is None else paused.events
    common: dict[str, Any] = {
        "at": time.time(),
        "turn": conversation.turn + 1 if paused is None else paused.turn,
        "turn_id": request.turn_id,
        "messages": finished.result.messages,
        "summarized": conversation.summarized(),
        "actions": list(request.actions),
        "metadata": dict(request.metadata),
    }
    if response.question is None:
        return TurnEntry(events=[*before, *packed([*events, message_event(response)])], **common)
    return PausedEntry(
        events=[*before, *packed(events)],
        question=response.question.model_dump(),
        message=finished.ask.message,
        system_prompt=finished.ask.system_prompt,
        **common,
    )


def hook_of(on_event: Any) -> Callable[[Event, ChatRequest], object]:
    """A hook that takes event and request, whatever the caller's takes."""
    if on_event is None:
        return unheard
    return on_event if takes_two(on_event) else lambda event, request: on_event(event)


def unheard(event: Event, request: ChatRequest) -> None:
    """The hook of an agent without one."""


def ignore(event: Event) -> None:
    """Takes the events of a turn that nobody watches."""


def message_event(response: ChatResponse) -> Message:
    return Message(response.message, iteration_limit=response.iteration_limit)


def error_event(error: AIForgeError) -> Error:
    return Error(error.code, str(error), error.retryable)
