"""Answers of earlier batches, for the items of batches that ask for them.

Only whole answers of the model that was asked are kept: no failure, no refusal, nothing that was cut short.
A batch that meets a line which another one asks just now waits for that answer; if none comes, it asks
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from aiforge.core import completions
from aiforge.core.completions import Answer, Request
from aiforge.core.openai_chat.model import OpenAIChat
from aiforge.modules.chat.agent import TurnResult, TurnSpec
from worker import metrics
from worker.calls.ledger import Recorder
from worker.contract.batch.answers import AnswerStore, Asked, Found, KeptAnswer, asked
from worker.contract.batch.batches import Slice
from worker.contract.batch.line_schemas import LineResponse
from worker.contract.batch.sameness import item_question, line_question
from worker.contract.errors import Unavailable
from worker.contract.schemas import BatchItem
from worker.patience import patiently
from worker.running import engine

WAIT_SECONDS: Final = 600.0
"""How long an item waits for another batch's answer before it asks itself."""
_SHORTEST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 0.5
_WHOLE: Final = "stop"
"""Why a model ends that has said all it had to say; or it asks for a call, which the caller is to make."""
_CALLS: Final = ("tool_calls", "function_call")
_log = logging.getLogger(__name__)
T = TypeVar("T", TurnResult, Answer)


class Question(NamedTuple):
    """What is asked of a model: all that decides its answer."""

    model: str
    decides: list[Any]


class Reuse:
    """Finds answers and keeps them; safe to share within one event loop."""

    def __init__(self, answers: AnswerStore, lease_seconds: float) -> None:
        self._answers = answers
        self._renew_seconds = lease_seconds / 4

    async def line(
        self, taken: Slice, index: int, request: Request, recorder: Recorder
    ) -> Answer | KeptAnswer:
        """The answer to a line of a file."""

        async def ask() -> Answer:
            return await completions.answer(request, recorder)

        return await self._answered(taken, index, lambda: _of_line(request), ask, recorder)

    async def item(
        self, taken: Slice, index: int, item: BatchItem, spec: TurnSpec, recorder: Recorder
    ) -> TurnResult | KeptAnswer:
        """The answer to an item."""

        async def ask() -> TurnResult:
            return await engine.answer_item(spec, recorder)

        return await self._answered(taken, index, lambda: _of_item(taken, item, spec), ask, recorder)

    async def _answered(
        self,
        taken: Slice,
        index: int,
        asking: Callable[[], Question],
        ask: Callable[[], Awaitable[T]],
        recorder: Recorder,
    ) -> T | KeptAnswer:
        """An answer that was kept, or the one that is asked for now."""
        seconds = taken.defaults.cache_ttl
        if not seconds:
            return await ask()
        question = asking()
        name = asked(taken.tenant, question.model, *question.decides)
        token = f"{taken.token}.{index}"
        found = await self._found(name, token, seconds)
        if found is not None:
            return found
        going_on = asyncio.create_task(self._go_on(name, token, seconds))
        kept: KeptAnswer | None = None
        try:
            said = await ask()
            # A fallback's answer is another model's.
            if {call.model for call in recorder.made} == {question.model}:
                kept = _kept(said, question.model)
            return said
        finally:
            going_on.cancel()
            with contextlib.suppress(Unavailable):  # nobody is the worse for it, but for asking again
                await self._answers.keep(name, token, seconds, kept)

    async def _found(self, name: Asked, token: str, seconds: int) -> KeptAnswer | None:
        """None when this item is to ask."""
        until, pause, outcome = time.monotonic() + WAIT_SECONDS, _SHORTEST_PAUSE, "kept"
        found: Found
        while True:
            try:
                found = await patiently(lambda: self._answers.ask(name, token, seconds))
            except Unavailable:
                found = "lost"
            if isinstance(found, KeptAnswer):
                metrics.LOOKUPS.labels(outcome).inc()
                return found
            if found != "wait" or time.monotonic() > until:
                metrics.LOOKUPS.labels("asked").inc()
                return None
            outcome = "waited"
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, 1.5 * pause)

    async def _go_on(self, name: Asked, token: str, seconds: int) -> None:
        """Keep others waiting for as long as this one asks."""
        found: Found = "ask"
        while found == "ask":
            await asyncio.sleep(self._renew_seconds)
            try:
                found = await self._answers.ask(name, token, seconds, goes_on=True)
            except Unavailable:
                _log.warning("answer_not_held")


def _of_item(taken: Slice, item: BatchItem, spec: TurnSpec) -> Question:
    """An item, with what this worker's settings say where neither it nor its batch does."""
    question = item_question(item, taken.defaults) | {
        "system_prompt": spec.system_prompt,
        "model": spec.model_name,
        "temperature": spec.params.temperature,
        "max_tokens": spec.params.max_tokens,
    }
    return Question(spec.model_name, ["item", spec.provider, spec.settings.OPENAI_BASE_URL, question])


def _of_line(request: Request) -> Question:
    """A line of a file, by what its body means."""
    where = request.model.url if isinstance(request.model, OpenAIChat) else ""
    question = line_question(msgspec.json.decode(request.body))
    return Question(request.model_name, ["line", request.provider, where, request.endpoint, question])


def _kept(said: TurnResult | Answer, model: str) -> KeptAnswer | None:
    """What is kept of an answer; None for one that another batch should not have."""
    if isinstance(said, TurnResult):
        whole = said.finish == _WHOLE and not said.iteration_limit and said.pending is None
        return KeptAnswer(model=model, answer=said.answer) if whole else None
    if said.failure is not None or not _is_whole(said.body):
        return None
    body = msgspec.Raw(said.body)
    response = LineResponse(status_code=said.status, request_id=said.request_id, body=body)
    return KeptAnswer(model=model, response=response)


class _Message(msgspec.Struct):
    refusal: Any = None


class _Choice(msgspec.Struct):
    finish_reason: Any = None
    message: _Message = msgspec.field(default_factory=_Message)


class _Part(msgspec.Struct):
    type: Any = None


class _Said(msgspec.Struct):
    content: list[_Part] | None = None


class _Body(msgspec.Struct):
    """What both endpoints' answers say of how whole they are."""

    choices: list[_Choice] | None = None
    status: Any = None
    output: list[_Said] | None = None


def _is_whole(answer: bytes) -> bool:
    """An answer in another form than OpenAI's is not known to be whole."""
    try:
        body = msgspec.json.decode(answer, type=_Body)
    except (msgspec.DecodeError, RecursionError):
        return False
    if body.choices is not None:
        return bool(body.choices) and all(
            choice.finish_reason in (_WHOLE, *_CALLS) and not choice.message.refusal
            for choice in body.choices
        )
    parts = [part for said in body.output or () for part in said.content or ()]
    return body.status == "completed" and all(part.type != "refusal" for part in parts)
