"""A worker of a few lines on the contract's own store: it says and commits what a test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final, Protocol

import msgspec

from aiforge.core.events import Done, Error, Event, Failed, Message, Token, encode
from aiforge.core.types import ProviderCall, Usage
from tests.support.waiting import eventually
from worker.contract.claims import Claim, Finished, new_token
from worker.contract.client import TurnClient
from worker.contract.errors import Unavailable
from worker.contract.places import Place
from worker.contract.records import TurnOutcome
from worker.contract.schemas import Caller, StoredMessage, TurnFailure, TurnRequest, TurnState
from worker.contract.store import TurnStore

USAGE: Final = Usage(input_tokens=12, output_tokens=3)
SUSPECT_AFTER: Final = 2
"""Crashes that make a turn or slice a suspect by default: the third attempt is the last."""
DEAD: Final = TurnFailure("dead_lettered", "every process that ran this died")
COST: Final = Decimal("0.000003600001")
LOST: Final = Decimal("0.000002000009")
"""What a lost call is estimated to have cost."""


def intended(call_id: str) -> ProviderCall:
    """A call as the ledger holds it before its request is sent."""
    return ProviderCall(call_id=call_id, purpose="answer", provider="openai", model="m", outcome="intended")


def paid(call_id: str, *, cost: Decimal | None = COST, usage: Usage = USAGE) -> ProviderCall:
    """The same call after it went well."""
    return msgspec.structs.replace(intended(call_id), outcome="ok", usage=usage, cost=cost)


def lost(call_id: str) -> ProviderCall:
    """The same call after its worker died, by the reaper's estimate."""
    guessed = msgspec.structs.replace(USAGE, estimated=True)
    return msgspec.structs.replace(intended(call_id), outcome="lost", usage=guessed, cost=LOST)


async def rows(store: TurnStore, owner: str) -> list[ProviderCall]:
    """The ledger of a turn or batch without what only Redis and the claim know of a row."""
    return [msgspec.structs.replace(call, attempt=None, at=None) for call in await store.calls(owner)]


async def ended(client: TurnClient, turn_id: str) -> TurnState:
    """How a turn ends, also where its store is away for some of the time."""

    async def state() -> TurnState | None:
        try:
            turn = await client.wait(turn_id, 5)
        except Unavailable:
            return None
        return turn.state if turn.finished else None

    found = await eventually(state, 40)
    assert found is not None
    return found


class Connect(Protocol):
    """What the fixture `connect` is: a further client on the test's server, with other settings."""

    async def __call__(self, **settings: Any) -> TurnClient: ...


class Running:
    """A turn that was claimed; what it says and how it ends is up to the test."""

    def __init__(self, store: TurnStore, claim: Claim) -> None:
        self.store = store
        self.claim = claim
        self.said = 0
        self.call_id = f"{claim.place.turn_id}.{claim.token}.1"
        """The provider call that the claim entered in the ledger."""

    async def say(self, *events: Event, position: int | None = None) -> bool:
        """Append events to the log; False when the attempt no longer holds the turn."""
        at = self.said if position is None else position
        call = self.store.append_call(self.claim, at, [encode(event) for event in events])
        (reply,) = await self.store.connection.run_many([call])
        if isinstance(reply, Exception):
            raise reply
        if reply == 1:
            self.said = max(self.said, at + len(events))
        return bool(reply)

    async def tokens(self, *texts: str) -> bool:
        return await self.say(*(Token(text) for text in texts))

    async def answer(self, text: str, *, calls: Sequence[ProviderCall] | None = None) -> Finished:
        """Commit an answer, with one paid call unless others are given."""
        turn_id, request = self.claim.place.turn_id, self.claim.request
        return await self.finish(
            TurnState.COMPLETED,
            TurnOutcome(answer=text, model="m"),
            messages=[
                StoredMessage(role="user", content=request.message, turn_id=turn_id),
                StoredMessage(role="assistant", content=text, turn_id=turn_id),
            ],
            events=[Message(text), Done()],
            calls=[paid(self.call_id)] if calls is None else calls,
        )

    async def fail(self, code: str = "provider_error") -> Finished:
        """Commit a failure."""
        return await self.finish(
            TurnState.FAILED,
            TurnOutcome(error=TurnFailure(code, "it broke")),
            events=[Error(code, "it broke"), Failed(code, "it broke")],
        )

    async def finish(
        self,
        state: TurnState,
        outcome: TurnOutcome,
        *,
        events: Sequence[Event],
        messages: Sequence[StoredMessage] = (),
        calls: Sequence[ProviderCall] = (),
        position: int | None = None,
    ) -> Finished:
        return await self.store.finish(
            self.claim,
            state,
            outcome,
            messages=messages,
            events=[encode(event) for event in events],
            position=self.said if position is None else position,
            calls=calls,
        )

    async def hand_back(self) -> str:
        """`queued` or `refused`."""
        answer, _ = await self.store.requeue(self.claim.place, self.claim.fence)
        return answer


async def claim(
    store: TurnStore,
    place: Place,
    *,
    token: str | None = None,
    worker: str = "worker",
) -> Running:
    """Take a turn that is expected to be ready."""
    named = token or new_token()
    call = intended(f"{place.turn_id}.{named}.1")
    granted = await store.claim(place, "worker", call, named)
    assert isinstance(granted, Claim), granted
    return Running(store, granted)


async def expire(store: TurnStore, work: str, shard: int) -> None:
    """Let the lease of a turn or slice run out, as if its worker had died long ago."""
    await store.connection.command("ZADD", store.keys.leases(shard), "XX", 0, work)


async def crash(store: TurnStore, running: Running, calls: Sequence[ProviderCall] = ()) -> str:
    """The worker dies: its lease runs out and the reaper takes the turn, with estimates of open `calls`."""
    place = running.claim.place
    await expire(store, place.turn_id, int(place.turn_id[:2]))
    answer, _ = await store.requeue(place, None, calls=calls, wake_ms=0)
    return answer


async def die(store: TurnStore, running: Running) -> tuple[str, str | None]:
    """The process dies that the turn had to itself, and its worker says so."""
    claim = running.claim
    return await store.requeue(
        claim.place, claim.fence, died=DEAD, events=[Failed(DEAD.code, DEAD.message)], wake_ms=0
    )


async def submit(client: TurnClient, message: str = "Hello?", **options: Any) -> Place:
    """Post a turn; options are those of `TurnClient.submit`."""
    turn = await client.submit(TurnRequest(message=message), **options)
    return Place(turn.turn_id, client.caller.tenant, turn.conversation_id)


async def answered(client: TurnClient, message: str, answer: str, **options: Any) -> Place:
    """Post a turn and answer it."""
    place = await submit(client, message, **options)
    assert (await (await claim(client.turns, place)).answer(answer)).accepted
    return place


async def read(client: TurnClient, place: Place, after: int = 0) -> list[tuple[int, Event]]:
    """All that a reader gets of a turn that is over."""
    async with asyncio.timeout(10):
        return [entry async for entry in client.of(Caller(place.tenant)).events(place.turn_id, after=after)]


async def state(client: TurnClient, place: Place) -> TurnState:
    return (await client.of(Caller(place.tenant)).turn(place.turn_id)).state
