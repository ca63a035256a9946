"""The one door to turns in Redis: each transition is one script, called by one method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from aiforge.core.events import Cancelled, Error, Event, Expired, Queued
from aiforge.core.events import decode as decode_event
from aiforge.core.events import encode as encode_event
from aiforge.core.types import ProviderCall
from worker.contract import records
from worker.contract.claims import Claim, Finished, Left, Log, Refused
from worker.contract.errors import Conflict, Gone, KeyReused, NotFound
from worker.contract.ids import shard_of_id
from worker.contract.memory.conversations import GONE_MS
from worker.contract.places import Place
from worker.contract.queues import lane_of
from worker.contract.records import TurnOutcome
from worker.contract.schemas import (
    CONVERSATION_VERSION,
    DEFAULT_MEMORY_K,
    TURN_VERSION,
    ConversationSettings,
    Paused,
    Stop,
    StoredMessage,
    Turn,
    TurnFailure,
    TurnRequest,
    TurnState,
)
from worker.contract.server.connection import Connection
from worker.contract.server.link import Argument
from worker.contract.settings import ContractSettings
from worker.contract.upkeep import WAKE_MS, Upkeep

LATEST_EVENTS: Final = 2_000

_STOPPED: Final = records.encode(
    TurnOutcome(error=TurnFailure("cancelled", "the turn was cancelled while it waited"))
)


class TurnStore(Upkeep):
    """Typed access to turns; safe to share within one event loop."""

    def __init__(self, connection: Connection, settings: ContractSettings) -> None:
        super().__init__(connection, settings)
        self._keep = settings.stream_keep
        self._ttl_ms = int(settings.turn_ttl_seconds * 1000)
        self._lives_ms = int(settings.conversation_ttl_seconds * 1000)

    async def submit(
        self,
        place: Place,
        request: TurnRequest,
        *,
        digest: str,
        create: bool = True,
        keyed: bool = False,
        batch_id: str = "",
        api_key: str | None = None,
    ) -> tuple[Literal["ready", "waiting", "scheduled", "replayed"], Turn]:
        """Store a turn. `ready` asks the caller to send a wake-up; the same id and digest replay.

        A `keyed` one does not run again within a day, however soon its conversation is forgotten; `batch_id`
        is the batch that it is an item of, `api_key` the name of the key that it was posted with.
        Raises Conflict (`idempotency_mismatch`, `conversation_busy`), NotFound or Gone.
        """
        keys, shard = self.keys, shard_of_id(place.turn_id)
        due_ms = "" if request.run_after is None else int(request.run_after * 1000)
        arguments: list[Argument] = [
            *place, TURN_VERSION, digest, records.encode(request), lane_of(place.turn_id),
            keys.events(place.turn_id), self._keep, WAKE_MS, "create" if create else "reject",
            CONVERSATION_VERSION, DEFAULT_MEMORY_K, encode_event(Queued()), request.on_busy or "", due_ms,
            self._lives_ms, keys.gone(shard, place.turn_id), keys.control(), _STOPPED,
            encode_event(Cancelled()), self._ttl_ms, GONE_MS if keyed else 0,
            batch_id, api_key or "",
        ]  # fmt: skip
        answer, *rest = await self._transition("submit", place, arguments)
        match records.text(answer):
            case "ready" | "waiting" | "scheduled" as stored:
                return stored, records.queued(place.turn_id, place.conversation_id, request, rest[0])
            case "replayed":
                return "replayed", await self.turn(place.turn_id, place.tenant)
            case "busy":
                raise Conflict(
                    f"conversation {place.conversation_id!r} is busy with turn {rest[0].decode()}",
                    code="conversation_busy",
                )
            case "gone":
                raise Gone(f"turn {place.turn_id!r} is no longer kept")
            case "mismatch":
                raise KeyReused
            case _:
                raise NotFound(f"conversation {place.conversation_id!r} does not exist")

    async def turn(self, turn_id: str, tenant: str) -> Turn:
        """Raises NotFound when the tenant has no such turn."""
        # The ledger last: of a turn that is over it has every call by then.
        stored, rows = await self.connection.commands(
            [("HGETALL", self.keys.turn(turn_id)), ("HGETALL", self.keys.ledger(turn_id))]
        )
        record = records.fields(stored)
        if record.get("tenant") != tenant.encode():
            raise NotFound(f"turn {turn_id!r} does not exist")
        return records.turn(turn_id, record, records.calls(rows))

    async def request(self, turn_id: str) -> TurnRequest:
        """What was asked for; raises NotFound."""
        body = await self.connection.command("HGET", self.keys.turn(turn_id), "body")
        if body is None:
            raise NotFound(f"turn {turn_id!r} does not exist")
        return msgspec.json.decode(body, type=TurnRequest)

    async def place(self, turn_id: str, tenant: str | None = None) -> Place:
        """Raises NotFound when there is no such turn, or the tenant is another."""
        owner, conversation = await self.connection.command(
            "HMGET", self.keys.turn(turn_id), "tenant", "conversation_id"
        )
        if owner is None or (tenant is not None and owner.decode() != tenant):
            raise NotFound(f"turn {turn_id!r} does not exist")
        return Place(turn_id, owner.decode(), conversation.decode())

    async def claim(self, place: Place, worker: str, first_call: ProviderCall, token: str) -> Claim | Refused:
        """Take a queued turn; the first provider call is entered in the ledger with it."""
        keys, turn_id = self.keys, place.turn_id
        arguments: list[Argument] = [
            turn_id, worker, token, self._lease_ms, keys.events(turn_id), self._keep, TURN_VERSION,
            self.settings.suspect_after, first_call.call_id, records.encode(first_call), CONVERSATION_VERSION,
        ]  # fmt: skip
        why, *rest = await self._transition("claim", place, arguments)
        if why != b"claimed":
            return Refused(why.decode(), rest[0].decode() if rest else "")
        fence, attempt, suspect, now, created, body, settings, memory_k, window, *rest = rest
        paused, answer, stop, before, summary, lives_ms, batch_id, api_key = rest
        return Claim(
            place, token, int(fence), int(attempt), bool(suspect), (int(now) - int(created)) / 1000,
            msgspec.json.decode(body, type=TurnRequest),
            msgspec.json.decode(settings, type=ConversationSettings), int(memory_k),
            [msgspec.json.decode(message, type=StoredMessage) for message in window], self.log(turn_id),
            msgspec.json.decode(paused, type=Paused) if paused else None, answer.decode(),
            stop.decode() or None, before, summary.decode() or None, lives_ms / 1000 or None,
            batch_id.decode() or None, api_key.decode() or None,
        )  # fmt: skip

    def log(self, turn_id: str) -> Log:
        """Where a turn's events go."""
        return Log([self.keys.turn(turn_id), self.keys.log(turn_id)], self.keys.events(turn_id))

    def append_call(
        self, claim: Claim, position: int, events: Sequence[bytes]
    ) -> tuple[str, list[str], list[Argument]]:
        """The script call that adds an attempt's events, for `Connection.run_many`; its reply is 1 or 0."""
        keys, channel = claim.log
        return "append", keys, [claim.fence, channel, self._keep, position, *events]

    async def finish(
        self,
        claim: Claim,
        state: TurnState,
        outcome: TurnOutcome,
        *,
        messages: Sequence[StoredMessage] = (),
        events: Sequence[bytes],
        position: int,
        calls: Sequence[ProviderCall],
    ) -> Finished:
        """Commit an attempt; refused when the turn was given to another. Calls are settled in any case.

        `position` is how many events of the attempt were appended before `events`.
        """
        keys, place, turn_id = self.keys, claim.place, claim.place.turn_id
        arguments: list[Argument] = [
            turn_id, claim.fence, state, records.encode(outcome), keys.events(turn_id), self._keep,
            self._ttl_ms, WAKE_MS, position, len(calls), len(messages), len(events), *records.settled(calls),
            *(records.encode(message) for message in messages), *events,
        ]  # fmt: skip
        answer, following = await self._transition("finish", place, arguments)
        return Finished(answer == b"ok", following.decode() or None, answer == b"rollback")

    async def pause(
        self,
        claim: Claim,
        paused: Paused,
        *,
        events: Sequence[bytes],
        position: int,
        calls: Sequence[ProviderCall],
        left: Sequence[StoredMessage] = (),
    ) -> Literal["ok", "refused"] | Stop:
        """Let a turn wait for a human. A Stop says that someone wants it to end instead.

        `left` is what stays of it in memory if it is cancelled meanwhile.
        """
        assert paused.question is not None
        arguments: list[Argument] = [
            claim.place.turn_id, claim.fence, records.encode(paused), paused.question.question_id,
            claim.log.channel, self._keep, int(self.settings.action_timeout_seconds * 1000), position,
            len(calls), len(events), records.lines(left), *records.settled(calls), *events,
        ]  # fmt: skip
        answer = await self._transition("pause", claim.place, arguments)
        return answer.decode()  # type: ignore[no-any-return]

    async def keep(self, claim: Claim, paused: Paused, left: Sequence[StoredMessage] = ()) -> bool:
        """Keep what the turn has so far, and what stays of it if it is cancelled while nobody runs it.

        False when the attempt no longer holds it.
        """
        arguments: list[Argument] = [claim.fence, records.encode(paused), records.lines(left)]
        return bool(await self.connection.run("keep", [claim.log.keys[0]], arguments))

    async def summarize(self, claim: Claim, messages: int, summary: str) -> bool:
        """Let `summary` stand for the conversation's first `messages`; False when it was superseded."""
        keys, place = self.keys, claim.place
        names = [keys.turn(place.turn_id), *keys.of_conversation(place.tenant, place.conversation_id)]
        return bool(await self.connection.run("summarize", names, [claim.fence, messages, summary]))

    async def resume(self, place: Place, question_id: str, answer: str) -> bool:
        """Answer a paused turn's question; whether it is ready now. False when it was answered so before.

        Raises NotFound for a question that the turn does not have, Conflict (`already_answered`,
        `not_waiting`).
        """
        said, *rest = await self._transition("resume", place, [place.turn_id, question_id, answer, WAKE_MS])
        match records.text(said):
            case "ready" | "replayed" as kind:
                return kind == "ready"
            case "conflict":
                raise Conflict(
                    f"question {question_id!r} was answered differently before", code="already_answered"
                )
            case "unknown":
                raise NotFound(f"turn {place.turn_id!r} does not ask {question_id!r}")
            case _:
                raise Conflict(
                    f"turn {place.turn_id!r} waits for nobody, it is {rest[0].decode()}", code="not_waiting"
                )

    async def due(self, place: Place) -> str | None:
        """Let a turn go on whose time has come; the turn that is ready now, if there is one."""
        keys, turn_id = self.keys, place.turn_id
        failure = TurnFailure("expired", "nobody answered in time")
        arguments: list[Argument] = [
            turn_id, keys.events(turn_id), self._keep, self._ttl_ms, WAKE_MS,
            records.encode(TurnOutcome(error=failure)), encode_event(Error(failure.code, failure.message)),
            encode_event(Expired()),
        ]  # fmt: skip
        answer, following = await self._transition("due", place, arguments)
        return turn_id if answer == b"ready" else following.decode() or None

    async def requeue(
        self,
        place: Place,
        fence: int | None,
        *,
        calls: Sequence[ProviderCall] = (),
        died: TurnFailure | None = None,
        events: Sequence[Event] = (),
        wake_ms: int = WAKE_MS,
    ) -> tuple[Literal["queued", "dead", "refused"] | Stop, str | None]:
        """Take a turn from its worker: with its fence a hand-back, with None after its lease ran out.

        A Stop says that someone wants it to end instead. With its fence and `died`, the process died that it
        had to itself: the turn ends as failed with that and `events`; the second value is the next turn then.
        """
        keys, turn_id = self.keys, place.turn_id
        arguments: list[Argument] = [
            turn_id, "" if fence is None else fence, keys.events(turn_id), self._keep, self._ttl_ms,
            wake_ms, int(died is not None), records.encode(TurnOutcome(error=died)), len(calls),
            len(events), *records.settled(calls), *(encode_event(event) for event in events),
        ]  # fmt: skip
        answer, following = await self._transition("requeue", place, arguments)
        return answer.decode(), following.decode() or None

    async def cancel(self, place: Place, *, expected: TurnState | None = None) -> str | None:
        """Cancel a turn at once, or ask its worker to; the conversation's next turn, which is now ready.

        A finished one stays as it is. Raises Conflict (`turn_changed`) unless it is in the `expected` state.
        """
        keys, turn_id = self.keys, place.turn_id
        arguments: list[Argument] = [
            turn_id, _STOPPED, keys.events(turn_id), self._keep, self._ttl_ms, WAKE_MS, keys.control(),
            encode_event(Cancelled()), expected or "",
        ]  # fmt: skip
        answer, following = await self._transition("cancel", place, arguments)
        if answer == b"changed":
            raise Conflict(f"turn {turn_id!r} is {following.decode()} by now", code="turn_changed")
        return following.decode() or None

    async def left_behind(self, place: Place) -> Left:
        """What a dead attempt leaves."""
        keys = self.keys
        body, settings, window, events = await self.connection.commands(
            [
                ("HGET", keys.turn(place.turn_id), "body"),
                ("HGET", keys.conversation(*place[1:]), "settings"),
                ("LRANGE", keys.messages(*place[1:]), -DEFAULT_MEMORY_K, -1),
                ("LRANGE", keys.log(place.turn_id), -LATEST_EVENTS, -1),
            ]
        )
        return Left(
            msgspec.json.decode(body, type=TurnRequest),
            msgspec.json.decode(settings, type=ConversationSettings),
            [msgspec.json.decode(message, type=StoredMessage) for message in window],
            [decode_event(event) for event in events],
        )

    async def _transition(self, script: str, place: Place, arguments: Sequence[Argument]) -> Any:
        return await self.connection.run(script, self.keys.of_turn(*place), arguments)
