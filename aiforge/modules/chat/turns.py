"""Runs the turns of one agent: from what was asked to what its conversation gains."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final, TypeAlias

from langchain_core.language_models import BaseChatModel

from aiforge.core.base import CallLog
from aiforge.core.contained import contained
from aiforge.core.cost import CostTracker
from aiforge.core.deltas import CallParams
from aiforge.core.events import Error, Event, Message
from aiforge.core.fallbacks import Fallbacks
from aiforge.core.prompts import resolve_prompt
from aiforge.core.request import Action, ChatRequest, serving
from aiforge.core.router import own_prices
from aiforge.core.settings import AIForgeSettings
from aiforge.core.texts import words
from aiforge.core.types import AIForgeError, ConfigError
from aiforge.modules.chat.agent import TurnResult, TurnSpec, run_turn
from aiforge.modules.chat.begun import (
    Answer,
    Ask,
    Begun,
    begin,
    paused_entry,
    resume_of,
    stopped_entry,
    turn_entry,
)
from aiforge.modules.chat.budget import Budget
from aiforge.modules.chat.checks import takes_two
from aiforge.modules.chat.conversation import Conversation
from aiforge.modules.chat.entries import PausedEntry, TurnEntry
from aiforge.modules.chat.memory import Memory
from aiforge.modules.chat.schemas import ChatResponse
from aiforge.modules.chat.summary import shorten
from aiforge.tools.binding import BoundTool
from aiforge.tools.human import ASK_HUMAN

OnEvent: TypeAlias = Callable[[Event], object] | Callable[[Event, ChatRequest], object]
Dispatcher: TypeAlias = Callable[[Action], Awaitable[object] | object]
Emit: TypeAlias = Callable[[Event], None]

_logger: Final = logging.getLogger("aiforge")


@dataclass(frozen=True, slots=True)
class Finished:
    """A turn that ended well, or waits for a human, and that its conversation does not know yet."""

    begun: Begun
    result: TurnResult
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
    fallbacks: Fallbacks | None = None
    last_response: ChatResponse | None = None
    failed_summaries: int = 0

    async def begin(
        self, asked: Ask | Answer, conversation: Conversation, log: CallLog | None = None
    ) -> Begun:
        """See where the conversation stands. Raises ValueError for a question that is not open."""
        return await begin(asked, conversation, log or CallLog(self.tracker), perf_counter())

    async def run(self, begun: Begun, emit: Emit, *, stream: bool, resets: bool = False) -> Finished:
        """Take the turn to its answer or to a question; nobody is told of either before `commit`.

        `resets` says that `emit` can be told to forget the tokens so far.
        """
        ask, conversation, request = begun.ask, begun.conversation, begun.request
        tell = self._teller(emit, request, begun.events if conversation.store is not None else None)
        try:
            with serving(request):
                prompt = resolve_prompt(ask.system_prompt, default=self.system_prompt)
                if begun.paused is None:
                    await self._shorten(conversation, prompt, ask.message, tell, begun.log)
                spec = self._spec(ask, conversation.memory, prompt, request.turn_id, stream=stream)
                resume, journal = resume_of(begun)
                spec = replace(spec, resume=resume, journal=journal, attempt=1 if resets else None)
                result = await run_turn(spec, emit=tell, recorder=begun.log)
        except AIForgeError as error:
            self.hook(error_event(error), request)
            raise
        return Finished(begun, result, (perf_counter() - begun.started) * 1000)

    async def commit(self, finished: Finished) -> ChatResponse:
        """Make the turn part of its conversation, and only then tell of it."""
        response = self.response(finished)
        conversation, request = finished.begun.conversation, finished.begun.request
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
        begun = await self.begin(ask, conversation, log)
        finished = await self.run(begun, ignore, stream=False)
        if finished.result.pending is not None:
            what = finished.result.pending.tool or ASK_HUMAN
            raise ConfigError(f"tool {what!r} waits for a human, and an item of a batch has none")
        response = self.response(finished)
        self.hook(message_event(response), begun.request)
        await self.dispatch(conversation, begun.request.actions)
        return response

    async def stop(self, begun: Begun, seen: str) -> None:
        """Keep what the reader saw of a turn that is left early, marked as stopped."""
        if not seen.strip():
            return
        message = Message(seen, stopped=True)
        entry = stopped_entry(begun, message)
        try:
            await begun.conversation.commit(entry)
            self.hook(message, begun.request)
            await self.dispatch(begun.conversation, entry.actions)
        except Exception:  # the reader has left, with or without an error of its own that counts
            _logger.warning("the answer of a stopped stream has no full end", exc_info=True)

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
            with contained("the dispatcher of actions"):
                outcome = self.dispatcher(action)
                if inspect.isawaitable(outcome):
                    await outcome
        except Exception:  # the caller's own code: it may raise anything, and the turn stands
            _logger.warning("action %s (%s) is still pending", action.id, action.name, exc_info=True)
            return False
        return True

    def response(self, finished: Finished) -> ChatResponse:
        result, log = finished.result, finished.begun.log
        usages = [call.usage for call in log.calls if call.usage is not None]
        return ChatResponse(
            message=result.answer,
            conversation_id=finished.begun.conversation.id,
            tool_calls=result.tool_calls,
            iterations=result.iterations,
            memory_mode=self.memory_mode,
            cost=float(log.cost),
            input_tokens=sum(usage.input_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
            model=result.model,
            trace_id=finished.begun.request.turn_id,
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
            fallbacks=self.fallbacks,
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
            prices=own_prices(self.settings, self.provider),
        )
        if replaced is None:
            self.failed_summaries += 1
        elif replaced:
            conversation.shortened(replaced)


def _entry(finished: Finished, response: ChatResponse) -> TurnEntry | PausedEntry:
    """What the conversation's log gains."""
    begun, messages = finished.begun, finished.result.messages
    if response.question is not None:
        return paused_entry(begun, messages, response.question.model_dump())
    return turn_entry(begun, messages, message_event(response))


def hook_of(on_event: Any) -> Callable[[Event, ChatRequest], object]:
    """A hook that takes event and request, whatever the caller's takes."""
    if on_event is None:
        return unheard
    both = takes_two(on_event)

    def hook(event: Event, request: ChatRequest) -> object:
        with contained("on_event"):
            outcome = on_event(event, request) if both else on_event(event)
        if inspect.iscoroutine(outcome):
            outcome.close()
            raise TypeError("on_event must be a plain function: events do not wait")
        return outcome

    return hook


def unheard(event: Event, request: ChatRequest) -> None:
    """The hook of an agent without one."""


def ignore(event: Event) -> None:
    """Takes the events of a turn that nobody watches."""


def message_event(response: ChatResponse) -> Message:
    return Message(response.message, iteration_limit=response.iteration_limit)


def error_event(error: Exception) -> Error:
    if isinstance(error, AIForgeError):
        return Error(error.code, str(error), error.retryable)
    return Error(AIForgeError.code, f"{type(error).__name__}: {words(error)}")
