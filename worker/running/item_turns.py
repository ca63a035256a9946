"""Runs items that continue a conversation: each is a turn of it, with a turn's memory, ledger and fence."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from typing import Final, NamedTuple, Protocol

import msgspec

from aiforge.core import line_bodies
from aiforge.core.deltas import Completion
from aiforge.core.types import AIForgeError, ConfigError, ProviderCall, Usage
from worker.contract import records
from worker.contract.batch.batches import Slice
from worker.contract.batch.item_places import item_place, seconds_until
from worker.contract.batch.line_schemas import LineResponse
from worker.contract.errors import Conflict, Gone, NotFound, Unavailable
from worker.contract.places import Place
from worker.contract.readers import Reader
from worker.contract.schemas import BatchItem, Turn, TurnRequest, TurnState
from worker.contract.store import TurnStore
from worker.contract.wakeups.wake import Wakes
from worker.patience import patiently

LOOK_SECONDS: Final = 5.0
"""How often a turn is looked at whose end nobody tells of."""
BUSY_SECONDS: Final = 600.0
"""How long an item waits for other turns of its conversation, from when it joined their line."""
_log = logging.getLogger(__name__)


class ConversationErasedError(AIForgeError):
    """The conversation was erased while an item of it was a turn."""

    code = "conversation_erased"


class ConversationBusyError(AIForgeError):
    """Other turns of the conversation left an item no room."""

    code = "conversation_busy"
    retryable = True


class Runs(Protocol):
    """What runs a turn."""

    async def once(self, place: Place) -> None: ...


class TurnEnded(NamedTuple):
    """How the turn of an item ended, and all provider calls in its ledger."""

    turn: Turn
    calls: list[ProviderCall]
    failure: AIForgeError | None
    """Why it was ended here, if it was."""


class ItemTurns:
    """Takes items to their turns' ends, in the slots of their slices."""

    def __init__(self, store: TurnStore, turns: Runs, waker: Wakes) -> None:
        self._store = store
        self._turns = turns
        self._waker = waker
        self._reader = Reader(store.connection, store.keys)

    async def close(self) -> None:
        await self._reader.close()

    async def run(self, taken: Slice, index: int, item: BatchItem) -> TurnEnded | float:
        """How the turn ended, or in how many seconds a budget may have room for it. Repeated, also elsewhere,
        it finds the same turn again. Raises ConversationErasedError."""
        assert item.conversation is not None
        place = item_place(taken.tenant, item.conversation, taken.batch_id, index, taken.retried)
        request = _request(taken, item)
        digest = hashlib.sha256(records.encode(request)).hexdigest()[:32]
        failure: AIForgeError | None = None
        try:
            _, turn = await patiently(
                lambda: self._store.submit(
                    place, request, digest=digest, keyed=True, batch_id=taken.batch_id, api_key=taken.api_key
                )
            )
            tried = False
            while not turn.finished:
                if turn.state is TurnState.SCHEDULED:
                    return await self._waits(turn)
                if turn.state is TurnState.QUEUED and not tried:
                    await self._attempt(place)
                    tried = True
                elif why := _given_up(turn):
                    await self._cancel(place, turn)
                    failure = why
                else:
                    with contextlib.suppress(Unavailable):
                        await self._reader.wait(place.turn_id, LOOK_SECONDS)
                    tried = False
                turn = await patiently(lambda: self._store.turn(place.turn_id, place.tenant))
        except (Gone, NotFound):
            raise ConversationErasedError(f"conversation {item.conversation!r} was erased") from None
        return TurnEnded(turn, await patiently(lambda: self._store.calls(place.turn_id)), failure)

    async def _waits(self, turn: Turn) -> float:
        """Seconds until a turn that was postponed joins its conversation's line again."""
        return await patiently(lambda: seconds_until(self._store, turn.run_after or 0))

    async def _attempt(self, place: Place) -> None:
        """One attempt, which ends in its own way when the slice has to be let go of: it has its own lease."""
        attempt = asyncio.create_task(self._turns.once(place))
        try:
            await asyncio.shield(attempt)
        except Unavailable:
            _log.warning("turn_not_claimed", extra={"turn": place.turn_id})
        except asyncio.CancelledError:
            await asyncio.wait([attempt])
            raise

    async def _cancel(self, place: Place, turn: Turn) -> None:
        with contextlib.suppress(Conflict):
            following = await patiently(lambda: self._store.cancel(place, expected=turn.state))
            if following is not None:
                self._waker.wake(following)


def _given_up(turn: Turn) -> AIForgeError | None:
    """Why a turn that nobody runs cannot be waited for any longer, if that is so."""
    if turn.state is TurnState.REQUIRES_ACTION:
        return ConfigError("a tool asks a human, which an item of a batch cannot do")
    if turn.state is TurnState.QUEUED and time.time() - (turn.run_after or turn.created_at) > BUSY_SECONDS:
        return ConversationBusyError(f"conversation {turn.conversation_id!r} is busy with others")
    return None


def line_response(endpoint: str, turn: Turn) -> LineResponse:
    """The answer of a turn that is a line of a file, in the words of the endpoint that it is for."""
    said = Completion(
        text=turn.answer or "", tool_calls=[], usage=turn.usage or Usage(), finish_reason="stop",
        model=turn.model or "",
    )  # fmt: skip
    body = msgspec.Raw(records.encode(line_bodies.reply(endpoint, said, turn.turn_id)))
    return LineResponse(status_code=200, request_id=turn.turn_id, body=body)


def _request(taken: Slice, item: BatchItem) -> TurnRequest:
    """The item with what the batch says for all of them; the rest is the conversation's to say."""
    batch = taken.defaults
    return TurnRequest(
        message=item.message,
        system_prompt=batch.system_prompt if item.system_prompt is None else item.system_prompt,
        model=batch.model if item.model is None else item.model,
        temperature=batch.temperature if item.temperature is None else item.temperature,
        max_tokens=batch.max_tokens if item.max_tokens is None else item.max_tokens,
        tools=batch.tools if item.tools is None else item.tools,
        metadata=batch.metadata if item.metadata is None else item.metadata,
        on_busy="enqueue",
    )
