"""The one door to turns and conversations in Redis: each transition is one script, called by one method."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from aiforge.core.events import Event, Queued
from aiforge.core.events import decode as decode_event
from aiforge.core.events import encode as encode_event
from aiforge.core.types import ProviderCall
from worker.contract import records
from worker.contract.connection import Argument, Connection
from worker.contract.errors import Conflict, NotFound
from worker.contract.keys import Keys, is_batch, new_turn_id, shard_of, shard_of_id
from worker.contract.queues import lane_of
from worker.contract.records import TurnOutcome
from worker.contract.schemas import (
    CONVERSATION_VERSION,
    DEFAULT_MEMORY_K,
    TURN_VERSION,
    Conversation,
    ConversationSettings,
    StoredMessage,
    Turn,
    TurnFailure,
    TurnRequest,
    TurnState,
)
from worker.contract.settings import ContractSettings

WAKE_MS: Final = 5_000
"""How long a sent wake-up may take before the reaper sends another."""
LONGEST_WAKE_MS: Final = 60_000
REAPER_LOCK_MS: Final = 2_000
REAP_LIMIT: Final = 500
LATEST_EVENTS: Final = 2_000

Refusal = Literal["gone", "newer", "later", "refused"]


class Place(NamedTuple):
    """Where a turn stands: what every key of it is made from."""

    turn_id: str
    tenant: str
    conversation_id: str


class Refused(NamedTuple):
    """A claim that was not granted; nothing has changed."""

    why: Refusal
    detail: str


class Claim(NamedTuple):
    """A turn that this worker may run until its lease ends."""

    place: Place
    token: str
    fence: int
    attempt: int
    suspect: bool
    waited: float
    """Seconds from its submission to this claim."""
    request: TurnRequest
    settings: ConversationSettings
    memory_k: int
    window: list[StoredMessage]


class Finished(NamedTuple):
    """Whether a commit was accepted, and the conversation's next turn, which is now ready."""

    accepted: bool
    following: str | None


class Overdue(NamedTuple):
    """What a reaper found on one shard."""

    expired: list[str]
    due: list[str]
    ready: int


class TurnStore:
    """Typed access to turns and conversations; safe to share within one event loop."""

    def __init__(self, connection: Connection, settings: ContractSettings) -> None:
        self.connection = connection
        self.settings = settings
        self.keys = Keys(settings.namespace)
        self._keep = settings.stream_keep
        self._ttl_ms = int(settings.turn_ttl_seconds * 1000)
        self._lease_ms = int(settings.lease_seconds * 1000)

    async def submit(
        self, place: Place, request: TurnRequest, *, digest: str, create: bool = True
    ) -> tuple[Literal["ready", "waiting", "replayed"], Turn]:
        """Store a turn. `ready` asks the caller to send a wake-up; the same id and digest replay."""
        keys = self.keys
        arguments: list[Argument] = [
            *place, TURN_VERSION, digest, records.encode(request), lane_of(place.turn_id),
            keys.events(place.turn_id), self._keep, WAKE_MS, "create" if create else "reject",
            CONVERSATION_VERSION, DEFAULT_MEMORY_K, encode_event(Queued()),
        ]  # fmt: skip
        answer = records.text(await self._transition("submit", place, arguments))
        match answer:
            case "ready" | "waiting" | "replayed":
                turn = await self.turn(place.turn_id, place.tenant)
                return answer, msgspec.structs.replace(turn, replayed=answer == "replayed")
            case "mismatch":
                raise Conflict("the idempotency key was used with another body", code="idempotency_mismatch")
            case _:
                raise NotFound(f"conversation {place.conversation_id!r} does not exist")

    async def turn(self, turn_id: str, tenant: str) -> Turn:
        """Raises NotFound when the tenant has no such turn."""
        return records.turn(turn_id, await self._record(turn_id, tenant))

    async def place(self, turn_id: str, tenant: str | None = None) -> Place:
        """Raises NotFound when there is no such turn, or the tenant is another."""
        owner, conversation = await self.connection.command(
            "HMGET", self.keys.turn(turn_id), "tenant", "conversation_id"
        )
        if owner is None or (tenant is not None and owner.decode() != tenant):
            raise NotFound(f"turn {turn_id!r} does not exist")
        return Place(turn_id, owner.decode(), conversation.decode())

    async def claim(
        self, place: Place, worker: str, first_call: ProviderCall, token: str, *, suspect_busy: bool
    ) -> Claim | Refused:
        """Take a queued turn; the first provider call is entered in the ledger with it."""
        keys, turn_id = self.keys, place.turn_id
        arguments: list[Argument] = [
            turn_id, worker, token, self._lease_ms, keys.events(turn_id), self._keep, TURN_VERSION,
            int(suspect_busy), first_call.call_id, records.encode(first_call),
        ]  # fmt: skip
        why, *rest = await self._transition("claim", place, arguments)
        if why != b"claimed":
            return Refused(why.decode(), rest[0].decode() if rest else "")
        fence, attempt, suspect, now, created, body, settings, memory_k, window = rest
        return Claim(
            place, token, int(fence), int(attempt), bool(suspect), (int(now) - int(created)) / 1000,
            msgspec.json.decode(body, type=TurnRequest),
            msgspec.json.decode(settings, type=ConversationSettings), int(memory_k),
            [msgspec.json.decode(message, type=StoredMessage) for message in window],
        )  # fmt: skip

    def append_call(
        self, claim: Claim, position: int, events: Sequence[bytes]
    ) -> tuple[str, list[str], list[Argument]]:
        """The script call that adds an attempt's events, for `Connection.run_many`; its reply is 1 or 0."""
        turn_id = claim.place.turn_id
        names = [self.keys.turn(turn_id), self.keys.log(turn_id)]
        return "append", names, [
            claim.fence, self.keys.events(turn_id), self._keep, position, *events,
        ]  # fmt: skip

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
        return Finished(answer == b"ok", following.decode() or None)

    async def requeue(
        self,
        place: Place,
        fence: int | None,
        *,
        calls: Sequence[ProviderCall] = (),
        failure: TurnFailure | None = None,
        events: Sequence[Event] = (),
        wake_ms: int = WAKE_MS,
    ) -> tuple[Literal["queued", "dead", "refused"], str | None]:
        """Take a turn from its worker: with its fence a hand-back, with None after its lease ran out.

        A turn that died too often ends as failed with `failure` and `events`; the second value is the
        conversation's next turn in that case.
        """
        keys, turn_id = self.keys, place.turn_id
        arguments: list[Argument] = [
            turn_id, "" if fence is None else fence, keys.events(turn_id), self._keep, self._ttl_ms,
            wake_ms, self.settings.max_attempts, records.encode(TurnOutcome(error=failure)), len(calls),
            len(events), *records.settled(calls), *(encode_event(event) for event in events),
        ]  # fmt: skip
        answer, following = await self._transition("requeue", place, arguments)
        return answer.decode(), following.decode() or None

    async def cancel(self, place: Place, outcome: TurnOutcome, event: Event) -> tuple[str, str | None]:
        """`cancelled`, `asked` (its worker will) or `finished`; and the conversation's next turn."""
        keys, turn_id = self.keys, place.turn_id
        arguments: list[Argument] = [
            turn_id, records.encode(outcome), keys.events(turn_id), self._keep, self._ttl_ms, WAKE_MS,
            keys.control(), encode_event(event),
        ]  # fmt: skip
        answer, following = await self._transition("cancel", place, arguments)
        return answer.decode(), following.decode() or None

    async def cancels_asked(self, turn_ids: Sequence[str]) -> list[str]:
        """Those of these running turns that someone asked to cancel."""
        if not turn_ids:
            return []
        commands = [("HEXISTS", self.keys.turn(turn_id), "cancel") for turn_id in turn_ids]
        asked = await self.connection.commands(commands)
        return [turn_id for turn_id, flag in zip(turn_ids, asked, strict=True) if flag]

    async def heartbeat(self, held: dict[str, int]) -> list[str]:
        """Renew the leases of works by fence, one script a shard; returns the works that are lost."""
        shards: dict[int, list[Argument]] = {}
        for work, fence in held.items():
            shards.setdefault(shard_of_id(work), [self._lease_ms]).extend((work, fence))
        replies = await self.connection.run_many(
            [
                ("heartbeat", [self.keys.leases(shard), self.keys.fences(shard)], arguments)
                for shard, arguments in shards.items()
            ]
        )
        return [work.decode() for reply in replies for work in _checked(reply)]

    async def reap(self, shards: Sequence[int], owner: str) -> list[Overdue]:
        """List what is overdue on the shards whose reaper is, or now becomes, `owner`."""
        keys = self.keys
        arguments: list[Argument] = [owner, REAPER_LOCK_MS, REAP_LIMIT, WAKE_MS, LONGEST_WAKE_MS]
        replies = await self.connection.run_many(
            [
                (
                    "reap",
                    [keys.reaper(shard), keys.leases(shard), keys.ready(shard), keys.wakes(shard)],
                    arguments,
                )
                for shard in shards
            ]
        )
        return [
            Overdue([work.decode() for work in reply[0]], [work.decode() for work in reply[1]], reply[2])
            for reply in map(_checked, replies)
            if reply
        ]

    async def ledger(
        self, owner: str, *, settled: Sequence[ProviderCall], intended: Sequence[ProviderCall]
    ) -> None:
        """Write rows outside of a claim or commit; `owner` is a turn or a batch."""
        keys = self.keys
        records_of = [keys.batch(owner), keys.slices(owner)] if is_batch(owner) else [keys.turn(owner)]
        names = [keys.ledger(owner), keys.totals(shard_of_id(owner)), *records_of]
        rows = [part for call in intended for part in (call.call_id, records.encode(call))]
        arguments: list[Argument] = [len(settled), len(intended), *records.settled(settled), *rows]
        await self.connection.run("ledger", names, arguments)

    async def calls(self, owner: str) -> list[ProviderCall]:
        """The provider calls of a turn or batch."""
        rows = records.fields(await self.connection.command("HGETALL", self.keys.ledger(owner)))
        return [msgspec.json.decode(row, type=ProviderCall) for row in rows.values()]

    async def left_behind(self, place: Place) -> tuple[TurnRequest, list[StoredMessage], list[Event]]:
        """A turn's request, the memory it was given, and its latest events: what a dead attempt leaves."""
        keys = self.keys
        body, window, events = await self.connection.commands(
            [
                ("HGET", keys.turn(place.turn_id), "body"),
                ("LRANGE", keys.messages(*place[1:]), -DEFAULT_MEMORY_K, -1),
                ("LRANGE", keys.log(place.turn_id), -LATEST_EVENTS, -1),
            ]
        )
        return (
            msgspec.json.decode(body, type=TurnRequest),
            [msgspec.json.decode(message, type=StoredMessage) for message in window],
            [decode_event(event) for event in events],
        )

    async def open(self, tenant: str, conversation_id: str, settings: ConversationSettings) -> Conversation:
        """Create a conversation; Conflict when the tenant has it already."""
        created, _ = await self.connection.run(
            "open",
            [self.keys.conversation(tenant, conversation_id)],
            [CONVERSATION_VERSION, settings.memory_k, records.encode(settings)],
        )
        if not created:
            raise Conflict(f"conversation {conversation_id!r} exists already", code="conversation_exists")
        return await self.conversation(tenant, conversation_id)

    async def conversation(self, tenant: str, conversation_id: str) -> Conversation:
        """Raises NotFound when the tenant has no such conversation."""
        flat = await self.connection.command("HGETALL", self.keys.conversation(tenant, conversation_id))
        if not flat:
            raise NotFound(f"conversation {conversation_id!r} does not exist")
        stored = await self.connection.command("LLEN", self.keys.messages(tenant, conversation_id))
        return records.conversation(conversation_id, records.fields(flat), stored)

    async def messages(
        self, tenant: str, conversation_id: str, after: int, limit: int
    ) -> list[StoredMessage]:
        """Stored messages in order, beginning behind the first `after`."""
        await self.conversation(tenant, conversation_id)
        name = self.keys.messages(tenant, conversation_id)
        stored = await self.connection.command("LRANGE", name, after, after + limit - 1)
        return [msgspec.json.decode(message, type=StoredMessage) for message in stored]

    async def presence(self, worker: str, alive_seconds: float) -> None:
        await self.connection.run("presence", [self.keys.workers()], [worker, int(alive_seconds * 1000)])

    async def _transition(self, script: str, place: Place, arguments: Sequence[Argument]) -> Any:
        return await self.connection.run(script, self.keys.of_turn(*place), arguments)

    async def _record(self, turn_id: str, tenant: str) -> dict[str, bytes]:
        record = records.fields(await self.connection.command("HGETALL", self.keys.turn(turn_id)))
        if record.get("tenant") != tenant.encode():
            raise NotFound(f"turn {turn_id!r} does not exist")
        return record


def new_place(tenant: str, conversation_id: str) -> Place:
    """A new turn of a conversation."""
    return Place(new_turn_id(shard_of(tenant, conversation_id)), tenant, conversation_id)


def new_token() -> str:
    """Names one claim, and the provider calls made under it."""
    return secrets.token_hex(4)


def _checked(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply
