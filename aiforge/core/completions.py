"""Requests in the words of OpenAI's API, answered in its words: what the lines of a batch's file are.

A provider that speaks OpenAI's wire format is given the body as it came, and its answer is the answer. For
every other one the body is read, and an answer is written as OpenAI's would be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from decimal import Decimal
from time import perf_counter
from typing import Any, Final, NamedTuple

import msgspec
from langchain_core.language_models import BaseChatModel

from aiforge.core.deltas import CallRequest
from aiforge.core.fallbacks import Fallbacks, Route, Way
from aiforge.core.gate import Gate, Place
from aiforge.core.line_bodies import asked, reply
from aiforge.core.openai_chat.model import Forwarded, OpenAIChat
from aiforge.core.openai_chat.wire import glimpse, usage_of
from aiforge.core.pricing import Price, price, price_list
from aiforge.core.providers import complete
from aiforge.core.recorder import Recorder
from aiforge.core.retry import pause_before_retry
from aiforge.core.tokens import (
    BYTES_PER_TOKEN,
    LONGEST_ANSWER,
    MOST_TOKENS,
    USUAL_ANSWER,
    estimate_usage,
    usual_answer,
)
from aiforge.core.types import (
    AIForgeError,
    APITimeoutError,
    Outcome,
    ProviderCall,
    ProviderError,
    StreamCutError,
    Usage,
)

_REQUEST_ID: Final = "x-request-id"


class Request(NamedTuple):
    """A request, who is to answer it, and how long that may take, repetitions included."""

    endpoint: str
    body: bytes
    model: BaseChatModel
    provider: str
    model_name: str
    max_retries: int
    seconds: float
    prices: Mapping[str, Price]
    gate: Gate | None = None
    """Who lets requests begin; None lets them all."""
    fallbacks: Fallbacks | None = None
    """Whom to ask when the model has failed for good."""


class _Bounds(msgspec.Struct):
    """What bounds an answer in either endpoint's body."""

    max_output_tokens: Any = None
    max_completion_tokens: Any = None
    max_tokens: Any = None
    n: Any = None

    @property
    def tokens(self) -> int | None:
        limits = (self.max_output_tokens, self.max_completion_tokens, self.max_tokens)
        return next((limit for limit in limits if type(limit) is int and limit >= 0), None)


_bounds: Final = msgspec.json.Decoder(_Bounds).decode


def longest_answer(body: bytes | msgspec.Raw) -> int | None:
    """The most tokens that a request's body lets an answer have; None where it does not say."""
    return _bounds(body).tokens


class Answer(NamedTuple):
    """What goes back to the caller, a refusal by the provider included: `failure` says what that means."""

    status: int
    request_id: str
    body: bytes
    failure: ProviderError | None


async def answer(request: Request, recorder: Recorder) -> Answer:
    """The provider's answer, which may be a refusal; raises AIForgeError when there is none.

    A failure that can pass is repeated; one that is final for a model is the next one's turn. Every request
    is told to the recorder.
    """
    deadline = asyncio.get_running_loop().time() + request.seconds
    way = Way(Route(request.model, request.provider, request.model_name, request.prices), request.fallbacks)
    while True:
        try:
            said = await _repeated(request, recorder, deadline, way)
            failure = said.failure
        except ProviderError as error:
            failure = error
            if not way.go_on(error):
                raise
        else:
            if failure is None or not way.go_on(failure):
                return said
        request = _to(request, way.route)


def _to(request: Request, route: Route) -> Request:
    """The same request to another model; of its body nothing but the model's name is written anew."""
    body = msgspec.json.decode(request.body, type=dict[str, msgspec.Raw])
    body["model"] = msgspec.Raw(msgspec.json.encode(route.model_name))
    return request._replace(
        body=msgspec.json.encode(body),
        model=route.model,
        provider=route.provider,
        model_name=route.model_name,
        prices=route.prices or {},
    )


async def _repeated(request: Request, recorder: Recorder, deadline: float, way: Way) -> Answer:
    """One model's answer; raises AIForgeError when there is none."""
    failures = 0
    while True:
        try:
            async with asyncio.timeout_at(deadline) as limit:
                said, failure, held = await _made(request, recorder, deadline, way)
        except TimeoutError:
            if not limit.expired():
                raise
            raise APITimeoutError(
                f"no answer within {request.seconds:g} s", provider=request.provider, model=request.model_name
            ) from None
        if said is not None and failure is None:
            return said
        assert failure is not None
        failures += 1
        left = deadline - asyncio.get_running_loop().time()
        pause = pause_before_retry(failure, failures, max_retries=request.max_retries, time_left=left)
        if pause is None:
            if said is None:
                raise failure
            return said
        await asyncio.sleep(0 if held else pause)


async def _made(
    request: Request, recorder: Recorder, deadline: float, way: Way
) -> tuple[Answer | None, ProviderError | None, bool]:
    """One request: what came, why it failed, and whether the gate holds the next one back for that."""
    place = None if request.gate is None else await _entered(request, request.gate, deadline, way)
    call, said, failure, held = _Call(request, recorder), None, None, False
    try:
        said = await call.run()
        failure = said.failure
    except ProviderError as error:
        failure = error
    finally:
        if place is not None:
            held = place.leave(ok=said is not None and failure is None, error=failure, usage=call.usage)
    return said, failure, held


async def _entered(request: Request, gate: Gate, deadline: float, way: Way) -> Place:
    def tokens() -> int:
        return len(request.body) // BYTES_PER_TOKEN + USUAL_ANSWER

    return await way.enter(gate, tokens, deadline - asyncio.get_running_loop().time())


class _Call:
    """One request. However it ends, the recorder is told."""

    def __init__(self, request: Request, recorder: Recorder) -> None:
        self._request = request
        self._recorder = recorder
        self._call_id = recorder.next_call_id()
        self._began = perf_counter()
        self.usage: Usage | None = None

    async def run(self) -> Answer:
        intended = self._call("intended", None)
        try:
            await self._recorder.intend(intended, self._most)
        except asyncio.CancelledError:
            self._settle("aborted", Usage())
            raise
        try:
            said, usage = await self._ask()
        except asyncio.CancelledError:
            self._settle("aborted", self._begun)
            raise
        except BaseException as error:
            code = error.code if isinstance(error, AIForgeError) else AIForgeError.code
            worked = isinstance(error, APITimeoutError | StreamCutError)
            self._settle("error", self._begun if worked else Usage(), code)
            raise
        if said.failure is None:
            self._settle("ok", usage)
        else:
            self._settle("error", usage, said.failure.code)
        return said

    async def _ask(self) -> tuple[Answer, Usage]:
        model = self._request.model
        if isinstance(model, OpenAIChat):
            return self._read(await model.forward(self._request.endpoint, self._request.body, self._call_id))
        request = self._request
        wanted = msgspec.json.decode(request.body)
        read = asked(request.endpoint, wanted, provider=request.provider, model=request.model_name)
        completion = await complete(model, CallRequest(read.messages, read.tools, read.params, self._call_id))
        body = msgspec.json.encode(reply(request.endpoint, completion, self._call_id, wanted))
        return Answer(200, self._call_id, body, None), completion.usage

    def _read(self, said: Forwarded) -> tuple[Answer, Usage]:
        """The provider's words on one line; what is no JSON is quoted in an error of OpenAI's form."""
        failure = said.failure
        try:
            usage = usage_of(said.body)
            body = msgspec.json.format(said.body, indent=-1)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if failure is None:
                raise ProviderError(
                    f"this is not an answer: {glimpse(said.body)}", status=said.status,
                    provider=self._request.provider, model=self._request.model_name,
                ) from None  # fmt: skip
            usage, body = None, msgspec.json.encode({"error": {"message": str(failure), "code": None}})
        if usage is None:
            usage = Usage() if failure is not None else self._estimate(body.decode(errors="replace"))
        request_id = said.headers.get(_REQUEST_ID) or self._call_id
        return Answer(said.status, request_id, body, failure), usage

    def _estimate(self, output: str) -> Usage:
        sent = self._request.body.decode(errors="replace")
        return estimate_usage([{"content": sent}], None, output)

    @property
    def _begun(self) -> Usage:
        """Of a request whose answer nobody saw: the provider is likely to have made one."""
        most = self._most()
        return msgspec.structs.replace(most, output_tokens=usual_answer(most.output_tokens))

    def _most(self) -> Usage:
        body = _bounds(self._request.body)
        answer = LONGEST_ANSWER if body.tokens is None else body.tokens
        choices = body.n if isinstance(body.n, int) else 1
        longest = min(answer * max(1, choices), MOST_TOKENS)
        return Usage(self._estimate("").input_tokens, longest, estimated=True)

    def _settle(self, outcome: Outcome, usage: Usage, code: str | None = None) -> None:
        self.usage = usage
        self._recorder.settle(self._call(outcome, usage, code))

    def _call(self, outcome: Outcome, usage: Usage | None, code: str | None = None) -> ProviderCall:
        request, ended = self._request, outcome != "intended"
        return ProviderCall(
            call_id=self._call_id,
            purpose="answer",
            provider=request.provider,
            model=request.model_name,
            outcome=outcome,
            usage=usage,
            cost=None if usage is None else self._price(usage),
            error_code=code,
            latency_ms=(perf_counter() - self._began) * 1000 if ended else None,
            price_list=price_list(request.provider, request.model_name, request.prices) if ended else None,
        )

    def _price(self, usage: Usage) -> Decimal | None:
        if usage.input_tokens == usage.output_tokens == 0:
            return Decimal(0)
        return price(self._request.provider, self._request.model_name, usage, self._request.prices)
