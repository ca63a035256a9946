"""`ChatAgent`: a conversation with memory and tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any, Final

from langchain_core.language_models import BaseChatModel

from aiforge.core import bridge
from aiforge.core.base import BaseModule, CallLog
from aiforge.core.deltas import CallParams
from aiforge.core.events import Event, Token
from aiforge.core.prompts import resolve_prompt
from aiforge.core.request import Action
from aiforge.core.types import ConfigError
from aiforge.core.windows import ContextWindow, WindowFinder
from aiforge.modules.chat.begun import Answer, Ask
from aiforge.modules.chat.budget import Budget
from aiforge.modules.chat.checks import (
    check_hook,
    check_options,
    checked_message,
    checked_metadata,
    checked_text,
)
from aiforge.modules.chat.conversation import Conversation
from aiforge.modules.chat.memory import Memory
from aiforge.modules.chat.order import TurnOrder
from aiforge.modules.chat.prompted import takes_tools, with_instructions
from aiforge.modules.chat.prompts import DEFAULT_SYSTEM_PROMPT
from aiforge.modules.chat.schemas import ChatResponse, PendingQuestion
from aiforge.modules.chat.stores.protocol import Store
from aiforge.modules.chat.turns import (
    Dispatcher,
    OnEvent,
    Turns,
    error_event,
    hook_of,
    ignore,
    message_event,
)
from aiforge.modules.chat.versions import Versions
from aiforge.modules.chat.watch import WatchedTurn
from aiforge.tools.binding import bind

ABSENT: Final = frozenset({"hooks", "mcp", "mcp_servers"})
"""Options of agents of this kind that this one does not have; they are refused, not ignored."""


class ChatAgent(Versions, BaseModule):
    """A multi-turn chat agent.

    Turns of one agent run one at a time, in the order in which they were asked for, from whatever
    thread or event loop. A turn is all or nothing: what fails or is cancelled leaves no trace in
    memory; of a stream that is stopped, message and partial answer stay. Keywords are fields of
    `AIForgeSettings`; `llm` is a LangChain chat model to use instead of the provider's.
    `native_tools=False` offers tools in words; None does so for models without tool calling.

    A tool with `approval = True` (a LangChain tool with `metadata={"approval": True}`) is run only once
    a human allows it: the response's `question` says what is asked, and `resume` goes on.

    With a `store`, conversation `conversation_id` goes on where it was left, in whatever process, and
    its past can be looked at. `on_event` is called with every event, or with event and `ChatRequest`
    when it takes two; what it raises ends the turn. `actions` is called, or awaited, once with every
    `Action` that a tool or hook recorded, after the turn's commit.

    Raises ValueError on an unknown `memory` mode and on `memory_k` or `max_tool_iterations` below 1,
    TypeError on a tool, store or hook that is none, ConfigError on everything else that is wrong.
    """

    def __init__(  # noqa: PLR0917  # the documented order
        self,
        system_prompt: str | None = None,
        tools: list[Any] | None = None,
        memory: str = "buffer",
        memory_k: int = 20,
        max_tool_iterations: int = 5,
        quality: str | None = None,
        provider: str | None = None,
        *,
        native_tools: bool | None = None,
        llm: BaseChatModel | None = None,
        store: Store | None = None,
        conversation_id: str | None = None,
        on_event: OnEvent | None = None,
        actions: Dispatcher | None = None,
        tokens_before_summarize: int | None = None,
        messages_to_keep: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_options(memory, memory_k, max_tool_iterations, conversation_id, store)
        check_hook("on_event", on_event, may_be_async=False)
        check_hook("actions", actions, may_be_async=True)
        for name in ABSENT & kwargs.keys():
            raise ConfigError(f"{name}= is not part of this version")
        self._tools = _tool_list(tools)
        bound = bind(self._tools)
        summaries = {"TOKENS_BEFORE_SUMMARIZE": tokens_before_summarize, "MESSAGES_TO_KEEP": messages_to_keep}
        kwargs.update((name, value) for name, value in summaries.items() if value is not None)
        super().__init__(quality=quality, provider=provider, llm=llm, **kwargs)
        self._turns = self._new_turns(
            system_prompt=system_prompt,
            tools=bound,
            native_tools=self._has_native_tools(native_tools),
            max_tool_iterations=max_tool_iterations,
            memory_mode=memory,
            hook=hook_of(on_event),
            dispatcher=actions,
        )
        self._memory_k = memory_k
        self._order = TurnOrder()
        self._conversation = Conversation(self._new_memory, conversation_id=conversation_id, store=store)

    @property
    def system_prompt(self) -> str:
        """The prompt of turns without one of their own; tools that are offered in words are part of it."""
        turns = self._turns
        if turns.native_tools:
            return turns.system_prompt
        return with_instructions(turns.system_prompt, [tool.schema for tool in turns.tools])

    @property
    def conversation_id(self) -> str:
        """16 hex characters, or what the constructor was given; `reset` gives a new one."""
        return self._conversation.id

    @property
    def memory_mode(self) -> str:
        return self._turns.memory_mode

    @property
    def memory_k(self) -> int:
        return self._memory_k

    @property
    def max_tool_iterations(self) -> int:
        return self._turns.max_tool_iterations

    @property
    def tools(self) -> list[Any]:
        return list(self._tools)

    @property
    def last_response(self) -> ChatResponse | None:
        """The response of the latest turn that ended well, a streamed one too."""
        return self._turns.last_response

    @property
    def failed_summaries(self) -> int:
        """How often a summary could not be made; the history was left as it was."""
        return self._turns.failed_summaries

    @property
    def context_window(self) -> ContextWindow:
        """The model's window in tokens, and who said so, as far as it is known by now."""
        return self._turns.budget.window

    @property
    def token_estimate_error(self) -> float | None:
        """How far estimated token counts are off what the provider reported: 0.1 is 10 % too many."""
        return self._turns.budget.estimate_error

    @property
    def question(self) -> PendingQuestion | None:
        """What the last turn waits for, as far as this agent knows."""
        paused = self._conversation.paused
        return None if paused is None else PendingQuestion.model_validate(paused.question)

    @property
    def pending_actions(self) -> list[Action]:
        """Actions of committed turns that were not dispatched; `deliver` tries again."""
        return list(self._conversation.undelivered.values())

    def chat(
        self, message: str, *, system_prompt: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> ChatResponse:
        """Send a message and wait for the response.

        `system_prompt` holds for this turn only; hooks and tools see `metadata` in their
        `current_request()`. Raises ValueError on an empty or over-long message, ProviderError when
        the provider fails.
        """
        return bridge.run(self.achat(message, system_prompt=system_prompt, metadata=metadata))

    async def achat(
        self, message: str, *, system_prompt: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> ChatResponse:
        """`chat`, awaited. Cancelling it closes the connection to the provider."""
        return await self._whole(self._checked(message, system_prompt, metadata))

    def chat_stream(
        self, message: str, *, system_prompt: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> AsyncGenerator[str, None]:
        """The text of all rounds as the provider sends it; `last_response` has the rest afterwards.

        The agent's next turn waits until this is read to its end or closed. Closed early, it ends the
        turn and the connection, and what was read of the answer is kept, marked as stopped. No fallback
        answers once there was a text: it could not be taken back.
        """
        return self._texts(lambda: self._checked(message, system_prompt, metadata))

    def achat_stream(
        self, message: str, *, system_prompt: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> AsyncGenerator[str, None]:
        """The same as `chat_stream`."""
        return self.chat_stream(message, system_prompt=system_prompt, metadata=metadata)

    def astream_events(
        self, message: str, *, system_prompt: str | None = None, metadata: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Event, None]:
        """All that happens in the turn; the last event is Message, or RequiresAction when it pauses.

        After a Reset the tokens before it are void: a fallback answers from the start. A turn that fails
        ends with an Error event, and then raises what `achat` would raise.
        """
        return self._events(lambda: self._checked(message, system_prompt, metadata))

    def resume(self, question_id: str, answer: str) -> ChatResponse:
        """Answer the question that the conversation's last turn waits for, and wait for its response.

        "approved" or "yes" lets a call run that waits for approval; anything else is told to the model
        as a refusal. The response counts what the turn costs from here on. A new message instead of an
        answer gives the turn up. When this fails the question stays open, but a call that has run keeps
        its result: the next answer only lets the turn go on. Raises ValueError when no such question is
        open.
        """
        return bridge.run(self.aresume(question_id, answer))

    async def aresume(self, question_id: str, answer: str) -> ChatResponse:
        """`resume`, awaited."""
        return await self._whole(_answer(question_id, answer))

    def resume_stream(self, question_id: str, answer: str) -> AsyncGenerator[str, None]:
        """`resume` as `chat_stream` streams."""
        return self._texts(lambda: _answer(question_id, answer))

    def resume_events(self, question_id: str, answer: str) -> AsyncGenerator[Event, None]:
        """`resume` as `astream_events` streams."""
        return self._events(lambda: _answer(question_id, answer))

    def run(self, text: str, **kwargs: Any) -> ChatResponse:
        """The same as `chat`; takes its keywords."""
        return self.chat(text, **kwargs)

    async def arun(self, text: str, **kwargs: Any) -> ChatResponse:
        """The same as `achat`."""
        return await self.achat(text, **kwargs)

    def run_stream(self, text: str, **kwargs: Any) -> Iterator[str]:
        """`chat_stream` outside of async code; nothing runs before the first text is asked for."""
        return bridge.iterate(self.chat_stream(text, **kwargs))

    def arun_stream(self, text: str, **kwargs: Any) -> AsyncGenerator[str, None]:
        """The same as `chat_stream`."""
        return self.chat_stream(text, **kwargs)

    def reset(self) -> None:
        """Leave the conversation and begin a new one; a turn that is running ends in the old one.

        A store keeps the old one.
        """
        self._conversation = self._conversation.fresh()

    def deliver(self) -> int:
        """Dispatch the actions that were not; how many are dispatched now."""
        return bridge.run(self.adeliver())

    async def adeliver(self) -> int:
        """`deliver`, awaited."""
        async with self._order:
            with self._order.inside():
                await self._conversation.catch_up()
                return await self._turns.dispatch(self._conversation, self.pending_actions)

    async def _run_alone(self, text: str, log: CallLog) -> ChatResponse:
        ask = self._checked(text, None, None)
        return await self._turns.run_alone(ask, Conversation(self._new_memory), log)

    async def _whole(self, asked: Ask | Answer) -> ChatResponse:
        async with self._order:
            with self._order.inside():
                begun = await self._turns.begin(asked, self._conversation)
                return await self._turns.commit(await self._turns.run(begun, ignore, stream=False))

    async def _texts(self, asked: Callable[[], Ask | Answer]) -> AsyncGenerator[str, None]:
        async with self._watched(asked(), resets=False) as turn:
            while (event := await turn.next()) is not None:
                if isinstance(event, Token):
                    yield event.text
            await turn.commit()

    async def _events(self, asked: Callable[[], Ask | Answer]) -> AsyncGenerator[Event, None]:
        async with self._watched(asked(), resets=True) as turn:
            while (event := await turn.next()) is not None:
                yield event
            try:
                response = await turn.commit()
            except Exception as error:
                yield error_event(error)
                raise
            if response.status == "completed":
                yield message_event(response)

    def _watched(self, asked: Ask | Answer, *, resets: bool) -> WatchedTurn:
        return WatchedTurn(self._order, self._turns, asked, self._conversation, resets=resets)

    def _new_turns(self, *, system_prompt: str | None, **options: Any) -> Turns:
        settings = self._settings
        prompt = resolve_prompt(system_prompt, settings.SYSTEM_PROMPT, default=DEFAULT_SYSTEM_PROMPT)
        prompt = checked_text("system_prompt", prompt)
        finder = WindowFinder(
            self._model, provider=self._provider, model_name=self._model_name, settings=settings
        )
        return Turns(
            model=self._model,
            provider=self._provider,
            model_name=self._model_name,
            settings=settings,
            system_prompt=prompt,
            params=CallParams(temperature=settings.TEMPERATURE, max_tokens=settings.MAX_TOKENS),
            budget=Budget(finder, settings),
            tracker=self._tracker,
            fallbacks=self._fallbacks,
            **options,
        )

    def _new_memory(self, conversation_id: str) -> Memory:
        return Memory(conversation_id, self.memory_mode, self._memory_k)

    def _has_native_tools(self, native_tools: bool | None) -> bool:
        able = takes_tools(self._model)
        if native_tools and not able:
            raise ConfigError("native_tools=True, but this model has no tool calling of its own")
        return able if native_tools is None else native_tools

    def _checked(self, message: str, system_prompt: object, metadata: object) -> Ask:
        text = checked_message(message, self._settings.MAX_MESSAGE_BYTES)
        prompt = None if system_prompt is None else checked_text("system_prompt", system_prompt)
        return Ask(text, prompt, checked_metadata(metadata))


def _tool_list(tools: object) -> list[Any]:
    if tools is None:
        return []
    if not isinstance(tools, list | tuple):
        raise TypeError(f"tools must be a list of tools; {tools!r} is not a tool list")
    return list(tools)


def _answer(question_id: object, answer: object) -> Answer:
    return Answer(checked_text("question_id", question_id), checked_text("answer", answer))
