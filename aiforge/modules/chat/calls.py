"""The provider calls of one turn: each recorded before and after, priced, and repeated where it helps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from time import perf_counter
from typing import Any, Final

import msgspec
from langchain_core.language_models import BaseChatModel

from aiforge.core.deltas import (
    AssembledCall,
    CallParams,
    CallRequest,
    FinishDelta,
    TextDelta,
    ToolCallDelta,
    UsageDelta,
    assemble,
)
from aiforge.core.events import Event, Reset, Token, UsageReport
from aiforge.core.fallbacks import Fallbacks, Route, Way
from aiforge.core.gate import Gate, Place
from aiforge.core.pricing import Price, price, price_list
from aiforge.core.providers import complete, stream_deltas
from aiforge.core.recorder import Recorder
from aiforge.core.retry import pause_before_retry
from aiforge.core.tokens import LONGEST_ANSWER, USUAL_ANSWER, count_messages, estimate_usage, usual_answer
from aiforge.core.types import (
    AIForgeError,
    APITimeoutError,
    EmptyAnswerError,
    Outcome,
    ProviderCall,
    ProviderError,
    Purpose,
    StreamCutError,
    UnavailableError,
    Usage,
)
from aiforge.modules.chat.prompted import Held, read_reply, takes_tools

EMPTY_AGAIN: Final = frozenset({"length", "content_filter"})
"""Finish reasons after which the same request would come back as empty as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the model is asked. Tokens of `round` are emitted as they come, unless it is None: no stream.

    Tools are offered natively with `tools`; `prompted` are those that `messages` offer in words.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    prompted: list[dict[str, Any]] | None = None
    round: int | None = None
    purpose: Purpose = "answer"
    may_be_empty: bool = False


class Reply:
    """What the model said in one call, filled while it speaks. Times are of `perf_counter`."""

    __slots__ = ("finish", "first_at", "held", "pieces", "started", "text", "tool_calls", "usage")

    def __init__(self) -> None:
        self.started = perf_counter()
        self.first_at: float | None = None
        self.text: list[str] = []
        self.pieces: list[ToolCallDelta] = []
        self.tool_calls: list[AssembledCall] = []
        self.usage: Usage | None = None
        self.finish = ""
        self.held: Held | None = None

    @property
    def answer(self) -> str:
        return "".join(self.text)


class Calls:
    """Asks one model on behalf of one turn; `settled` and `usage` say what that took.

    Where `fallbacks` has somebody to ask instead, a failure that is final for one model is the beginning
    of the next, which then is the turn's. `native` says whether the model at hand is offered tools natively.
    """

    def __init__(
        self,
        *,
        model: BaseChatModel,
        provider: str,
        model_name: str,
        params: CallParams,
        max_retries: int,
        deadline: float,
        emit: Callable[[Event], None],
        recorder: Recorder,
        prices: Mapping[str, Price] | None = None,
        gate: Gate | None = None,
        fallbacks: Fallbacks | None = None,
        native: bool = True,
        attempt: int | None = None,
    ) -> None:
        """Tokens that were given out can be taken back, by a Reset of this `attempt`, unless it is None."""
        self._way = Way(Route(model, provider, model_name, prices), fallbacks)
        self._gate = gate
        self._attempt = attempt
        self.native = native
        self._shown = False
        self._params = params
        self._max_retries = max_retries
        self._deadline = deadline
        self._emit = emit
        self._recorder = recorder
        self.settled: list[ProviderCall] = []
        self.usage = Usage()
        self._took: Usage | None = None
        """Of the latest call; None until it is settled, which one that was never made is not."""

    @property
    def route(self) -> Route:
        """The model that is asked now."""
        return self._way.route

    @property
    def fell_back(self) -> bool:
        return self._way.fell_back

    async def ask(self, request: Request, again: Callable[[], Request] | None = None) -> Reply:
        """The reply of the first model that has one; raises ProviderError, the last model's.

        `again` makes the request anew for another model, where that depends on the model. Nobody else is
        asked once a token was given out that cannot be taken back.
        """
        while True:
            self._shown = False
            try:
                return await self._repeat(request)
            except ProviderError as error:
                if (self._shown and self._attempt is None) or not self._way.go_on(error):
                    raise
            if self._shown and self._attempt is not None:
                self._emit(Reset(self._attempt))
            self.native = self.native and takes_tools(self.route.model)
            request = request if again is None else again()

    async def _repeat(self, request: Request) -> Reply:
        """One model's reply; raises ProviderError.

        A failure that can pass is repeated, but not once a token was given out: whoever reads along
        would see the beginning twice.
        """
        failures = 0
        while True:
            place = None if self._gate is None else await self._enter(self._gate, request)
            reply, held, self._took = Reply(), False, None
            try:
                await self._call(request, reply)
            except ProviderError as error:
                failures += 1
                pause = self._pause(error, failures)
                held = self._leave(place, ok=False, error=error)
                self._shown = request.round is not None and bool(reply.text)
                if pause is None or self._shown:
                    raise
            except BaseException:
                self._leave(place, ok=False)
                raise
            else:
                self._leave(place, ok=True)
                return reply
            await asyncio.sleep(0 if held else pause)

    async def _enter(self, gate: Gate, request: Request) -> Place:
        """A place for one call, waited for; nobody is told of the call before there is one."""

        def tokens() -> int:
            answer = self._params.max_tokens or USUAL_ANSWER
            return count_messages(request.messages, request.tools) + answer

        return await self._way.enter(gate, tokens, self._time_left)

    def _leave(self, place: Place | None, *, ok: bool, error: ProviderError | None = None) -> bool:
        if place is None:
            return False
        return place.leave(ok=ok, error=error, usage=self._took)

    @property
    def _time_left(self) -> float:
        return self._deadline - asyncio.get_running_loop().time()

    def _pause(self, error: ProviderError, failures: int) -> float | None:
        return pause_before_retry(error, failures, max_retries=self._max_retries, time_left=self._time_left)

    async def _call(self, request: Request, reply: Reply) -> None:
        """One request. However it ends, the recorder is told."""
        intended = ProviderCall(
            call_id=self._recorder.next_call_id(),
            purpose=request.purpose,
            provider=self.route.provider,
            model=self.route.model_name,
            outcome="intended",
        )
        try:
            await self._recorder.intend(intended, lambda: self._most(request))
        except asyncio.CancelledError:
            self._settle(intended, reply, "aborted", Usage())
            raise
        try:
            await self._read(request, reply, intended.call_id)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                self._settle(intended, reply, "aborted", reply.usage or self._unseen(request, reply))
                raise
            self._settle(intended, reply, "error", self._unseen(request, reply), UnavailableError.code)
            raise UnavailableError("the provider's client gave up the call by itself") from error
        except BaseException as error:
            code = error.code if isinstance(error, AIForgeError) else AIForgeError.code
            self._settle(intended, reply, "error", self._of_failure(request, reply, error), code)
            raise
        self._settle(intended, reply, "ok", reply.usage or _estimate(request, reply))

    def _unseen(self, request: Request, reply: Reply) -> Usage:
        """Of a call whose end nobody saw: what came of a stream, and of a whole answer a usual one."""
        usage = _estimate(request, reply)
        if request.round is not None:
            return usage
        return msgspec.structs.replace(usage, output_tokens=usual_answer(self._params.max_tokens))

    def _of_failure(self, request: Request, reply: Reply, error: BaseException) -> Usage:
        """What a failed call cost: nothing when the provider said no, an estimate when it was at work."""
        if reply.usage is not None:
            return reply.usage
        if reply.text or reply.pieces or isinstance(error, APITimeoutError | StreamCutError):
            return self._unseen(request, reply)
        return Usage()

    def _most(self, request: Request) -> Usage:
        answer = self._params.max_tokens or LONGEST_ANSWER
        return Usage(count_messages(request.messages, request.tools), answer, estimated=True)

    async def _read(self, request: Request, reply: Reply, call_id: str) -> None:
        if request.round is None:
            await self._read_whole(request, reply, call_id)
        else:
            await self._read_stream(request, request.round, reply, call_id)
        if request.prompted:
            self._read_words(request, request.prompted, reply)
        if not request.may_be_empty and not reply.tool_calls and not reply.answer.strip():
            raise EmptyAnswerError(
                f"the model's answer is empty (finish reason {reply.finish!r})",
                provider=self.route.provider,
                model=self.route.model_name,
                retryable=reply.finish not in EMPTY_AGAIN,
            )

    async def _read_stream(self, request: Request, round_: int, reply: Reply, call_id: str) -> None:
        emit, text = self._emit, reply.text
        held = Held(lambda text: emit(Token(text, round_))) if request.prompted else None
        asked = CallRequest(request.messages, request.tools, self._params, call_id)
        async for delta in stream_deltas(self.route.model, asked):
            if reply.first_at is None:
                reply.first_at = perf_counter()
            match delta:
                case TextDelta():
                    text.append(delta.text)
                    if held is None:
                        emit(Token(delta.text, round_))
                    else:
                        held.add(delta.text)
                case ToolCallDelta():
                    reply.pieces.append(delta)
                case UsageDelta():
                    reply.usage = delta.usage
                case FinishDelta():
                    reply.finish = delta.reason
        if request.tools:
            reply.tool_calls = assemble(reply.pieces)
        reply.held = held

    async def _read_whole(self, request: Request, reply: Reply, call_id: str) -> None:
        asked = CallRequest(request.messages, request.tools, self._params, call_id)
        completion = await complete(self.route.model, asked)
        reply.text.append(completion.text)
        reply.usage = completion.usage
        reply.finish = completion.finish_reason
        if request.tools:
            reply.tool_calls = completion.tool_calls

    @staticmethod
    def _read_words(request: Request, schemas: list[dict[str, Any]], reply: Reply) -> None:
        """Look for calls in the reply's text; where none is offered any more, one is no answer either."""
        calls, words = read_reply(reply.answer, schemas)
        if calls:
            reply.text = [] if request.may_be_empty else [words]
            reply.tool_calls = [] if request.may_be_empty else calls
        elif reply.held is not None:
            reply.held.release()

    def _settle(
        self, intended: ProviderCall, reply: Reply, outcome: Outcome, usage: Usage, code: str | None = None
    ) -> None:
        call = ProviderCall(
            call_id=intended.call_id,
            purpose="tool_round" if reply.tool_calls else intended.purpose,
            provider=intended.provider,
            model=intended.model,
            outcome=outcome,
            usage=usage,
            cost=self._price(usage),
            error_code=code,
            latency_ms=(perf_counter() - reply.started) * 1000,
            first_token_ms=None if reply.first_at is None else (reply.first_at - reply.started) * 1000,
            price_list=price_list(intended.provider, intended.model, self.route.prices),
        )
        self.settled.append(call)
        self._took = usage
        self.usage += usage
        self._recorder.settle(call)
        if outcome != "aborted" and (usage.input_tokens or usage.output_tokens):
            self._emit(UsageReport(call.call_id, call.model, usage, call.cost))

    def _price(self, usage: Usage) -> Decimal | None:
        """No tokens cost nothing, whatever the model."""
        if usage.input_tokens == usage.output_tokens == 0:
            return Decimal(0)
        return price(self.route.provider, self.route.model_name, usage, self.route.prices)


def _is_cancelled() -> bool:
    """Whether this task was told to stop; a CancelledError can also leak out of somebody's client."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _estimate(request: Request, reply: Reply) -> Usage:
    arguments = "".join(piece.arguments for piece in reply.pieces)
    return estimate_usage(request.messages, request.tools, reply.answer + arguments)
