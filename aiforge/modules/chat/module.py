"""`ChatAgent`: a conversation with memory and tools."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

from langchain_core.language_models import BaseChatModel

from aiforge.core import bridge
from aiforge.core.base import BaseModule, CallLog
from aiforge.core.deltas import CallParams
from aiforge.core.events import Error, Event, Message, Token
from aiforge.core.prompts import resolve_prompt
from aiforge.core.types import AIForgeError, ConfigError
from aiforge.modules.chat.agent import TurnResult, TurnSpec, run_turn
from aiforge.modules.chat.memory import MODES, Memory
from aiforge.modules.chat.order import TurnOrder
from aiforge.modules.chat.prompts import DEFAULT_SYSTEM_PROMPT
from aiforge.modules.chat.schemas import ChatResponse
from aiforge.modules.chat.summary import summarize
from aiforge.modules.chat.watch import WatchedTurn
from aiforge.tools.binding import bind

ABSENT: Final = frozenset(
    {"actions", "conversation_id", "hooks", "mcp", "mcp_servers", "messages_to_keep", "on_event", "store"}
    | {"tokens_before_summarize"}
)
"""Options of agents of this kind that this one does not have; they are refused, not ignored."""


@dataclass(frozen=True, slots=True)
class _Finished:
    """A turn that ended well and that memory does not know yet."""

    result: TurnResult
    memory: Memory
    log: CallLog
    latency_ms: float


class ChatAgent(BaseModule):
    """A multi-turn chat agent.

    Turns of one agent run one at a time, in the order in which they were asked for, from whatever
    thread or event loop. A turn is all or nothing: what fails, is cancelled or is not read to its
    end leaves no trace in memory. Keywords are fields of `AIForgeSettings`; `llm` is a LangChain
    chat model to use instead of the provider's.

    Raises ValueError on an unknown `memory` mode and on `memory_k` or `max_tool_iterations` below 1,
    TypeError on a tool that is none, ConfigError on everything else that is wrong.
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
        **kwargs: Any,
    ) -> None:
        if memory not in MODES:
            raise ValueError(f"memory must be one of {', '.join(MODES)}, not {memory!r}")
        _check_count("memory_k", memory_k)
        _check_count("max_tool_iterations", max_tool_iterations)
        if native_tools is False:
            raise ConfigError("native_tools=False, the prompted protocol, is not part of this version")
        for name in ABSENT & kwargs.keys():
            raise ConfigError(f"{name}= is not part of this version")
        self._tools = list(tools or ())
        self._bound = bind(self._tools)
        super().__init__(quality=quality, provider=provider, llm=llm, **kwargs)
        if self._bound and llm is None and self._settings.MINIMAL_ENDPOINT:
            raise ConfigError(
                "a MINIMAL_ENDPOINT takes no tools, and the prompted protocol is not part of this version"
            )
        self._system_prompt = resolve_prompt(
            system_prompt, self._settings.SYSTEM_PROMPT, default=DEFAULT_SYSTEM_PROMPT
        )
        _check_text("system_prompt", self._system_prompt)
        self._memory_mode = memory
        self._memory_k = memory_k
        self._max_tool_iterations = max_tool_iterations
        self._params = CallParams(
            temperature=self._settings.TEMPERATURE, max_tokens=self._settings.MAX_TOKENS
        )
        self._order = TurnOrder()
        self._memory = self._new_memory()
        self._last_response: ChatResponse | None = None
        self._failed_summaries = 0

    @property
    def system_prompt(self) -> str:
        return self._system_prompt

    @property
    def conversation_id(self) -> str:
        """16 hex characters; `reset` gives a new one."""
        return self._memory.conversation_id

    @property
    def memory_mode(self) -> str:
        return self._memory_mode

    @property
    def memory_k(self) -> int:
        return self._memory_k

    @property
    def max_tool_iterations(self) -> int:
        return self._max_tool_iterations

    @property
    def tools(self) -> list[Any]:
        return list(self._tools)

    @property
    def last_response(self) -> ChatResponse | None:
        """The response of the latest turn that ended well, a streamed one too."""
        return self._last_response

    @property
    def failed_summaries(self) -> int:
        """How often a summary could not be made; the history was left as it was."""
        return self._failed_summaries

    def chat(self, message: str, *, system_prompt: str | None = None) -> ChatResponse:
        """Send a message and wait for the response.

        `system_prompt` holds for this turn only. Raises ValueError on an empty or over-long message,
        ProviderError when the provider fails.
        """
        return bridge.run(self.achat(message, system_prompt=system_prompt))

    async def achat(self, message: str, *, system_prompt: str | None = None) -> ChatResponse:
        """`chat`, awaited. Cancelling it closes the connection to the provider."""
        self._check(message, system_prompt)
        async with self._order:
            return self._commit(await self._turn(message, system_prompt, self._memory, _ignore, stream=False))

    async def chat_stream(
        self, message: str, *, system_prompt: str | None = None
    ) -> AsyncGenerator[str, None]:
        """The text of all rounds as the provider sends it; `last_response` has the rest afterwards.

        The agent's next turn waits until this is read to its end or closed. Closed early, it ends the
        turn and the connection.
        """
        async with self._watched(message, system_prompt) as turn:
            while (event := await turn.next()) is not None:
                if isinstance(event, Token):
                    yield event.text
            self._commit(turn.result())

    def achat_stream(self, message: str, *, system_prompt: str | None = None) -> AsyncGenerator[str, None]:
        """The same as `chat_stream`."""
        return self.chat_stream(message, system_prompt=system_prompt)

    async def astream_events(
        self, message: str, *, system_prompt: str | None = None
    ) -> AsyncGenerator[Event, None]:
        """All that happens in the turn; Message is the last event.

        A turn that fails ends with an Error event, and then raises what `achat` would raise.
        """
        async with self._watched(message, system_prompt) as turn:
            while (event := await turn.next()) is not None:
                yield event
            try:
                response = self._commit(turn.result())
            except AIForgeError as error:
                yield Error(error.code, str(error), error.retryable)
                raise
            yield Message(response.message, iteration_limit=response.iteration_limit)

    def run(self, text: str, **kwargs: Any) -> ChatResponse:
        """The same as `chat`; takes `system_prompt` as a keyword."""
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
        """Forget the conversation and begin a new one; a turn that is running ends in the old one."""
        self._memory = self._new_memory()

    async def _run_alone(self, text: str, log: CallLog) -> ChatResponse:
        self._check(text, None)
        memory = self._new_memory()
        return self._response(await self._turn(text, None, memory, _ignore, stream=False, log=log))

    def _watched(self, message: str, system_prompt: str | None) -> WatchedTurn[_Finished]:
        self._check(message, system_prompt)
        return WatchedTurn(
            self._order, lambda emit: self._turn(message, system_prompt, self._memory, emit, stream=True)
        )

    async def _turn(
        self,
        message: str,
        system_prompt: str | None,
        memory: Memory,
        emit: Callable[[Event], None],
        *,
        stream: bool,
        log: CallLog | None = None,
    ) -> _Finished:
        started = perf_counter()
        log = log or CallLog(self._tracker)
        await self._shorten(memory, emit, log)
        spec = TurnSpec(
            message=message,
            history=memory.window(),
            summary=memory.summary,
            system_prompt=resolve_prompt(system_prompt, default=self._system_prompt),
            model=self._model,
            provider=self._provider,
            model_name=self._model_name,
            tools=self._bound,
            params=self._params,
            max_tool_iterations=self._max_tool_iterations,
            stream=stream,
            settings=self._settings,
        )
        result = await run_turn(spec, emit=emit, recorder=log)
        return _Finished(result, memory, log, (perf_counter() - started) * 1000)

    async def _shorten(self, memory: Memory, emit: Callable[[Event], None], log: CallLog) -> None:
        """Summarise what is old, if there is enough of it. A failure costs the summary, not the turn."""
        old = memory.to_summarize()
        if not old:
            return
        summary = await summarize(
            old,
            memory.summary,
            model=self._model,
            provider=self._provider,
            model_name=self._model_name,
            emit=emit,
            recorder=log,
        )
        if summary is None:
            self._failed_summaries += 1
        else:
            memory.replace(len(old), summary)

    def _commit(self, finished: _Finished) -> ChatResponse:
        finished.memory.add(finished.result.messages)
        self._last_response = self._response(finished)
        return self._last_response

    def _response(self, finished: _Finished) -> ChatResponse:
        result, log = finished.result, finished.log
        usages = [call.usage for call in log.calls if call.usage is not None]
        return ChatResponse(
            message=result.answer,
            conversation_id=finished.memory.conversation_id,
            tool_calls=result.tool_calls,
            iterations=result.iterations,
            memory_mode=self._memory_mode,
            cost=float(log.cost),
            input_tokens=sum(usage.input_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
            model=result.model,
            trace_id=secrets.token_hex(8),
            latency_ms=finished.latency_ms,
            iteration_limit=result.iteration_limit,
            priced=log.unpriced == 0,
            unpriced_calls=log.unpriced,
            calls=log.calls,
        )

    def _new_memory(self) -> Memory:
        return Memory(secrets.token_hex(8), self._memory_mode, self._memory_k)

    def _check(self, message: object, system_prompt: object) -> None:
        _check_text("message", message)
        assert isinstance(message, str)
        if not message.strip():
            raise ValueError("message must not be empty")
        size = len(message.encode())
        if size > self._settings.MAX_MESSAGE_BYTES:
            raise ValueError(
                f"message has {size} bytes; MAX_MESSAGE_BYTES is {self._settings.MAX_MESSAGE_BYTES}"
            )
        if system_prompt is not None:
            _check_text("system_prompt", system_prompt)


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds half a surrogate pair, which is no character") from None


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a whole number from 1, not {value!r}")


def _ignore(event: Event) -> None:
    """Takes the events of a turn that nobody watches."""
