"""Runs turns: claim, engine, commit; and what happens instead when something goes wrong between them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Literal, assert_never

import msgspec

from aiforge.core.events import (
    Cancelled,
    Done,
    Error,
    Event,
    Failed,
    Message,
    Preamble,
    RequiresAction,
    Reset,
    Token,
    encode,
)
from aiforge.core.types import AIForgeError, ProviderCall
from aiforge.modules.chat.agent import TurnResult
from worker import metrics
from worker.calls.ledger import Recorder
from worker.calls.lost import lost_calls
from worker.calls.purse import BudgetExceededError
from worker.contract.batch import item_places
from worker.contract.claims import Claim, Finished, Refused, new_token
from worker.contract.errors import NotFound, Unavailable
from worker.contract.places import Place
from worker.contract.records import TurnOutcome
from worker.contract.schemas import Lane, Paused, Question, Stop, StoredMessage, TurnFailure, TurnState
from worker.contract.store import TurnStore
from worker.contract.wakeups.wake import Wakes
from worker.patience import patiently
from worker.running import engine, recorders
from worker.running.courtesy import Courtesy
from worker.running.failures import OWN_ERROR, failure_of
from worker.running.journal import Journal, left_of
from worker.running.specs import Specs, stored
from worker.running.stream import BEYOND, Flusher, Stream
from worker.running.summaries import shortened
from worker.suspects.quarantine import DEAD, Quarantine
from worker.upkeep.leases import REASONS, Held, Leases

_log = logging.getLogger(__name__)
_LANE = Lane.CHAT.value


class TurnRunner:
    """Runs turns on one event loop; every method is called there."""

    def __init__(
        self,
        *,
        worker: str,
        store: TurnStore,
        flusher: Flusher,
        leases: Leases,
        specs: Specs,
        waker: Wakes,
        quarantine: Quarantine,
        draining: Callable[[], bool],
        courtesy: Courtesy,
    ) -> None:
        self._courtesy = courtesy
        self._worker = worker
        self._store = store
        self._flusher = flusher
        self._leases = leases
        self._specs = specs
        self._waker = waker
        self._quarantine = quarantine
        self._draining = draining
        self._attempts = Attempts(store=store, flusher=flusher, specs=specs, waker=waker)

    async def run(self, turn_id: str) -> None:
        """Run a turn, then the conversation's waiting ones while this worker takes work."""
        try:
            place: Place | None = await self._store.place(turn_id)
        except NotFound:
            metrics.DROPPED.labels("unknown").inc()
            return
        while place is not None and not self._draining():
            with self._courtesy.chat():
                following = await self._run(place)
            place = place._replace(turn_id=following) if following is not None else None
        if place is not None:
            self._waker.wake(place.turn_id)

    async def once(self, place: Place) -> None:
        """One attempt; a worker is woken for the conversation's next turn when this one ended."""
        following = await self._run(place, wanted=True)
        if following is not None:
            self._waker.wake(following)

    async def _run(self, place: Place, *, wanted: bool = False) -> str | None:
        """One attempt; returns the conversation's next turn when this one ended. An item whose batch is over
        is cancelled, unless it is known to be `wanted`."""
        token = new_token()
        recorder = recorders.of_turn(self._store, place, token, self._specs)
        claim = await self._store.claim(place, self._worker, recorder.first, token)
        if isinstance(claim, Refused):
            metrics.DROPPED.labels(claim.why).inc()
            return None
        metrics.QUEUE_SECONDS.labels(_LANE).observe(claim.waited)
        with (
            metrics.IN_FLIGHT.labels(_LANE).track_inprogress(),
            metrics.TURN_SECONDS.labels(_LANE).time(),
            self._leases.hold(place.turn_id, claim.fence) as held,
        ):
            if claim.stop is not None:
                held.stop(REASONS[claim.stop])
            elif claim.batch_id is not None and not wanted and not await self._is_wanted(claim.batch_id):
                held.stop("cancelled")
            if claim.suspect:
                return await self._apart(claim, recorder, held)
            return await self._attempts.run(claim, recorder, held)

    async def _is_wanted(self, batch_id: str) -> bool:
        return await patiently(lambda: item_places.goes_on(self._store, batch_id))

    async def _apart(self, claim: Claim, recorder: Recorder, held: Held) -> str | None:
        """One attempt in a process of its own; when that died or was killed, its end is written here."""
        left = await self._quarantine.run(claim, held)
        if left.ended is not None:
            return left.ended.following
        calls = await patiently(lambda: self._lost(claim.place)) if left.begun else []
        if left.begun and held.reason is None:
            return await self._bury(claim, calls)
        recorder.lose(calls)
        attempt = Attempt(claim, recorder, self._flusher)
        attempt.stream.sent = BEYOND
        held.reason = held.reason or "handed_back"
        return await self._attempts.stop(attempt, held)

    async def _lost(self, place: Place) -> list[ProviderCall]:
        """The calls that a process of its own has left open."""
        calls = await lost_calls(self._store, place, self._specs.prices)
        await self._specs.charge(place.tenant, calls)
        return calls

    async def _bury(self, claim: Claim, calls: list[ProviderCall]) -> str | None:
        """The turn killed its process: that is its end."""
        events: list[Event] = [Error(DEAD.code, DEAD.message), Failed(DEAD.code, DEAD.message)]
        answer, following = await patiently(
            lambda: self._store.requeue(claim.place, claim.fence, calls=calls, died=DEAD, events=events)
        )
        metrics.TURNS.labels(_LANE, "failed" if answer == "dead" else "refused").inc()
        if answer == "dead":
            metrics.count_failure(_LANE, DEAD.code)
        return following


class Attempts:
    """Takes a turn that was claimed to its end, whichever that is; also in a process of its own."""

    def __init__(self, *, store: TurnStore, flusher: Flusher, specs: Specs, waker: Wakes) -> None:
        self._store = store
        self._flusher = flusher
        self._specs = specs
        self._waker = waker

    async def run(self, claim: Claim, recorder: Recorder, held: Held) -> str | None:
        """Returns the conversation's next turn when this one ended."""
        attempt = Attempt(claim, recorder, self._flusher)
        ended = await self._engine(attempt, held)
        try:
            return await self._end(attempt, held, ended)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001  # else it would be run again and again
            return await self._fail(attempt, _own_failure(error, claim))

    async def _engine(self, attempt: Attempt, held: Held) -> TurnResult | Exception | None:
        """The engine's result or error, or None when the attempt was stopped."""
        attempt.stream.on_lost = lambda: held.stop("lost")
        task = asyncio.create_task(self._answer(attempt))
        held.follow(task)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()
        return None if task.cancelled() else task.exception() or task.result()  # type: ignore[return-value]

    async def _answer(self, attempt: Attempt) -> TurnResult:
        claim, recorder = attempt.claim, attempt.recorder
        journal = attempt.journal = Journal(self._store, claim, recorder, lost=attempt.stream.on_lost)
        spec = await shortened(
            self._specs.of_turn(claim, journal),
            claim,
            self._store,
            emit=attempt.emit,
            recorder=recorder,
            lost=attempt.stream.on_lost,
        )
        return await engine.answer(spec, claim.place.conversation_id, emit=attempt.emit, recorder=recorder)

    async def _end(self, attempt: Attempt, held: Held, ended: TurnResult | Exception | None) -> str | None:
        match ended:
            case TurnResult(pending=None):
                return await self._complete(attempt, ended)
            case TurnResult():
                return await self._pause(attempt, ended)
            case None:
                return await self.stop(attempt, held)
            case BudgetExceededError(again_in=float(seconds)) if attempt.claim.batch_id is not None:
                return await self._postpone(attempt, seconds)
            case AIForgeError():
                failure = failure_of(ended)
            case _:
                failure = _own_failure(ended, attempt.claim)
        return await self._fail(attempt, failure)

    async def _complete(self, attempt: Attempt, result: TurnResult) -> str | None:
        outcome = attempt.outcome(answer=result.answer, model=result.model)
        messages = stored(result.messages, attempt.claim.place.turn_id)
        events: list[Event] = [Message(result.answer, iteration_limit=result.iteration_limit), Done()]
        return await self._commit(attempt, TurnState.COMPLETED, outcome, messages, events)

    async def _pause(self, attempt: Attempt, result: TurnResult) -> str | None:
        """A human is asked; until the answer comes nothing of the turn is kept here."""
        asked = result.pending
        assert asked is not None
        paused = Paused(
            messages=result.messages,
            question=msgspec.convert(asked.model_dump(), Question),
            calls=attempt.recorder.made,
        )
        calls, left = attempt.calls(), left_of(paused, attempt.claim.place.turn_id)
        unsent = await self._flusher.take(attempt.stream)
        unsent.append(encode(RequiresAction(asked.question_id, asked.kind, asked.text)))

        async def pause() -> Literal["ok", "refused"] | Stop:
            return await self._store.pause(
                attempt.claim, paused, events=unsent, position=attempt.stream.sent, calls=calls, left=left
            )

        answer = await patiently(pause)
        if answer in ("ok", "refused"):
            metrics.TURNS.labels(_LANE, "requires_action" if answer == "ok" else "refused").inc()
            return None
        return await self._cancelled(attempt, keep=answer != "rollback", so_far=paused)

    async def _postpone(self, attempt: Attempt, seconds: float) -> str | None:
        """An item of a batch waits for room in a budget, and its conversation goes on without it."""
        calls = attempt.calls()
        answer, following = await patiently(
            lambda: item_places.postpone(self._store, attempt.claim, seconds, calls=calls)
        )
        if answer not in ("ok", "refused"):
            return await self._cancelled(attempt, keep=answer != "rollback")
        metrics.TURNS.labels(_LANE, "handed_back" if answer == "ok" else "refused").inc()
        return following

    async def _fail(self, attempt: Attempt, failure: TurnFailure) -> str | None:
        metrics.count_failure(_LANE, failure.code)
        events: list[Event] = [
            Error(failure.code, failure.message, failure.retryable),
            Failed(failure.code, failure.message),
        ]
        return await self._commit(attempt, TurnState.FAILED, attempt.outcome(error=failure), [], events)

    async def stop(self, attempt: Attempt, held: Held) -> str | None:
        """End an attempt that was told to, as its reason demands."""
        match held.reason:
            case "cancelled" | "rolled_back":
                return await self._cancelled(attempt, keep=held.reason == "cancelled")
            case "handed_back":
                return await self._hand_back(attempt)
            case "lost" | None:
                calls, place = attempt.calls(), attempt.claim.place
                if calls:
                    await patiently(
                        lambda: self._store.ledger(place.turn_id, place.tenant, settled=calls, intended=[])
                    )
                metrics.TURNS.labels(_LANE, "lost").inc()
            case _:
                assert_never(held.reason)
        return None

    async def _cancelled(self, attempt: Attempt, *, keep: bool, so_far: Paused | None = None) -> str | None:
        """What the turn has done so far, and what readers saw of its answer, stays in memory; or nothing."""
        partial = attempt.text if keep else ""
        messages = left_of(so_far or attempt.so_far, attempt.claim.place.turn_id, partial) if keep else []
        events: list[Event] = [Message(partial, stopped=True), Cancelled()] if partial else [Cancelled()]
        outcome = attempt.outcome(
            answer=partial or None, error=TurnFailure("cancelled", "the turn was cancelled")
        )
        return await self._commit(attempt, TurnState.CANCELLED, outcome, messages, events)

    async def _hand_back(self, attempt: Attempt) -> str | None:
        """Let another worker run the turn; one that is to stop ends here."""
        place, calls = attempt.claim.place, attempt.calls()
        try:
            answer, _ = await self._store.requeue(place, attempt.claim.fence, calls=calls)
        except Unavailable:
            _log.warning("turn_not_handed_back", extra={"turn": place.turn_id})
            return None
        if answer not in ("queued", "refused"):
            return await self._cancelled(attempt, keep=answer != "rollback")
        metrics.TURNS.labels(_LANE, "handed_back").inc()
        if answer == "queued":
            self._waker.wake(place.turn_id)
        return None

    async def _commit(
        self,
        attempt: Attempt,
        state: TurnState,
        outcome: TurnOutcome,
        messages: list[StoredMessage],
        events: list[Event],
    ) -> str | None:
        calls = attempt.calls()
        unsent = await self._flusher.take(attempt.stream)
        unsent += [encode(event) for event in events]

        async def finish() -> Finished:
            return await self._store.finish(
                attempt.claim,
                state,
                outcome,
                messages=messages,
                events=unsent,
                position=attempt.stream.sent,
                calls=calls,
            )

        finished = await patiently(finish)
        if finished.rolled_back:
            return await self._cancelled(attempt, keep=False)
        metrics.TURNS.labels(_LANE, state.value if finished.accepted else "refused").inc()
        return finished.following


class Attempt:
    """One execution of a turn: what it has said and spent so far."""

    def __init__(self, claim: Claim, recorder: Recorder, flusher: Flusher) -> None:
        self.claim = claim
        self.recorder = recorder
        recorder.begin(claim)
        if claim.paused is not None:
            recorder.made.extend(claim.paused.calls)
        self.stream = Stream(claim)
        self.journal: Journal | None = None
        self._flusher = flusher
        self._text: list[str] = []
        self._ended: list[ProviderCall] = []
        self._began = time.perf_counter()
        self._silent = True

    def emit(self, event: Event) -> None:
        """Take an event of the engine to the readers. A question is one of them only after its commit."""
        if isinstance(event, RequiresAction):
            return
        if isinstance(event, Token):
            self._text.append(event.text)
            if self._silent:
                self._silent = False
                waited = self.claim.waited + time.perf_counter() - self._began
                metrics.FIRST_TOKEN_SECONDS.labels(_LANE).observe(waited)
        elif isinstance(event, Preamble | Reset):
            self._text.clear()
        self._flusher.push(self.stream, event)

    @property
    def text(self) -> str:
        """What readers have seen of the answer."""
        return "".join(self._text)

    @property
    def so_far(self) -> Paused:
        """What the turn has but for this answer's text, this attempt's tools included."""
        known = self.journal.so_far if self.journal is not None else self.claim.paused
        return known or Paused(messages=[{"role": "user", "content": self.claim.request.message}])

    def calls(self) -> list[ProviderCall]:
        """The calls to settle with this attempt's end; all again where the first end was refused."""
        self._ended += self.recorder.take()
        return list(self._ended)

    def outcome(
        self, *, answer: str | None = None, error: TurnFailure | None = None, model: str | None = None
    ) -> TurnOutcome:
        """What the turn's record gains."""
        made = self.recorder.made
        return TurnOutcome(answer=answer, error=error, model=model or (made[-1].model if made else None))


def _own_failure(error: Exception, claim: Claim) -> TurnFailure:
    _log.error("turn_crashed", exc_info=error, extra={"turn": claim.place.turn_id})
    return OWN_ERROR
