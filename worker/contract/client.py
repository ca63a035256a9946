"""Turns, conversations and batches for callers: checks the input, stores the work, wakes a worker."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterator, Mapping
from decimal import Decimal
from typing import Any, Final, Literal, Self

import msgspec

from aiforge.core.events import Cancelled, Event
from aiforge.core.settings import AIForgeSettings
from aiforge.tools import registry
from worker.contract import records
from worker.contract.batches import BatchStore
from worker.contract.connection import Connection
from worker.contract.errors import ContractError, InvalidInput, NotFound
from worker.contract.keys import SHARDS, is_batch_id, is_conversation_id, is_turn_id, shard_of
from worker.contract.readers import Reader
from worker.contract.records import TurnOutcome
from worker.contract.schemas import (
    MAX_BATCH_ITEMS,
    MAX_MESSAGE_BYTES,
    Batch,
    BatchRequest,
    BatchRow,
    Conversation,
    ConversationSettings,
    Lane,
    StoredMessage,
    Turn,
    TurnFailure,
    TurnRequest,
)
from worker.contract.settings import ContractSettings
from worker.contract.store import Place, TurnStore, new_place
from worker.contract.wake import Waker

MAX_KEY_LENGTH: Final = 255


class Stats(msgspec.Struct, frozen=True):
    """Figures of the whole installation, read at a metrics scrape.

    `totals` holds the ledger's sums per (provider, model): tokens by kind, calls by outcome, `usd`,
    `unpriced`.
    """

    depth: dict[Lane, int]
    ready: int
    running: int
    workers: int
    totals: dict[tuple[str, str], dict[str, Decimal]]


class TurnClient:
    """Straight to Redis. One client serves one event loop; every method raises ContractError."""

    def __init__(self, settings: ContractSettings, waker: Waker) -> None:
        assert settings.redis_url is not None
        self.settings = settings
        self.connection = Connection(settings.redis_url)
        self.turns = TurnStore(self.connection, settings)
        self.batches = BatchStore(self.connection, settings)
        self._reader = Reader(self.connection, self.turns.keys)
        self._waker = waker
        self._tools = registry.names(AIForgeSettings.load())

    @classmethod
    async def connect(cls, settings: ContractSettings) -> Self:
        """Raises Unavailable when Redis does not answer."""
        client = cls(settings, Waker(settings))
        await client.connection.command("PING")
        return client

    async def close(self) -> None:
        await self._reader.close()
        await self._waker.close()
        await self.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def submit(
        self,
        request: TurnRequest,
        *,
        tenant: str = "default",
        conversation_id: str | None = None,
        if_not_exists: Literal["create", "reject"] = "create",
        idempotency_key: str | None = None,
    ) -> Turn:
        """Store a turn and wake a worker when its conversation is idle.

        With the same `idempotency_key` and body, the same turn is returned, marked `replayed`.
        """
        check_turn(request, self._tools)
        if conversation_id is not None:
            check_conversation_id(conversation_id)
        place = self._place(tenant, conversation_id, idempotency_key)
        digest = hashlib.sha256(records.encode(request)).hexdigest()[:32]
        answer, turn = await self.turns.submit(
            place, request, digest=digest, create=if_not_exists == "create" or conversation_id is None
        )
        if answer == "ready":
            self._waker.wake(turn.turn_id)
        return turn

    async def turn(self, turn_id: str, *, tenant: str = "default") -> Turn:
        return await self.turns.turn(_turn(turn_id), tenant)

    async def wait(self, turn_id: str, seconds: float, *, tenant: str = "default") -> Turn:
        """The finished turn, or the turn as it is when `seconds` have passed."""
        turn = await self.turn(turn_id, tenant=tenant)
        if turn.finished:
            return turn
        await self._reader.wait(turn_id, seconds)
        return await self.turn(turn_id, tenant=tenant)

    def events(
        self, turn_id: str, *, after: int = 0, tenant: str = "default"
    ) -> AsyncIterator[tuple[int, Event]]:
        """Every event behind sequence number `after`, as it happens; ends after the terminal event.

        A turn that is over always yields its terminal event; what is no longer kept is named by a Gap.
        """
        return self._reader.events(_turn(turn_id), tenant, after)

    async def cancel(self, turn_id: str, *, tenant: str = "default") -> Turn:
        """Cancel a waiting turn at once, a running one through its worker; a finished one stays as it is."""
        place = await self.turns.place(_turn(turn_id), tenant)
        outcome = TurnOutcome(error=TurnFailure("cancelled", "the turn was cancelled before it ran"))
        _, following = await self.turns.cancel(place, outcome, Cancelled())
        if following is not None:
            self._waker.wake(following)
        return await self.turn(turn_id, tenant=tenant)

    async def create_conversation(
        self,
        settings: ConversationSettings,
        *,
        conversation_id: str | None = None,
        tenant: str = "default",
    ) -> Conversation:
        """Raises Conflict when the tenant has the conversation already."""
        if not 1 <= settings.memory_k <= 1_000:
            raise InvalidInput("memory_k must be from 1 to 1000", param="memory_k")
        if conversation_id is not None:
            check_conversation_id(conversation_id)
        return await self.turns.open(tenant, conversation_id or secrets.token_hex(8), settings)

    async def conversation(self, conversation_id: str, *, tenant: str = "default") -> Conversation:
        check_conversation_id(conversation_id)
        return await self.turns.conversation(tenant, conversation_id)

    async def messages(
        self, conversation_id: str, *, after: int = 0, limit: int = 100, tenant: str = "default"
    ) -> list[StoredMessage]:
        """Stored messages in order, without the first `after`."""
        check_conversation_id(conversation_id)
        return await self.turns.messages(tenant, conversation_id, after, limit)

    async def submit_batch(self, request: BatchRequest, *, tenant: str = "default") -> Batch:
        """Store all items, then wake as many workers as the batch's window allows."""
        check_batch(request, self._tools)
        batch = await self.batches.create(request, tenant)
        self._waker.wake(batch.batch_id, times=min(batch.total, self.settings.batch_window))
        return batch

    async def batch(self, batch_id: str, *, tenant: str = "default") -> Batch:
        return await self.batches.get(_batch(batch_id), tenant)

    async def results(
        self, batch_id: str, *, after: int = 0, limit: int = 1000, tenant: str = "default"
    ) -> list[BatchRow]:
        """Finished rows from index `after` on, up to the first unfinished one."""
        return await self.batches.rows(_batch(batch_id), tenant, after, limit)

    async def cancel_batch(self, batch_id: str, *, tenant: str = "default") -> Batch:
        return await self.batches.cancel(_batch(batch_id), tenant)

    async def ready(self) -> str | None:
        """None, or one line why Redis cannot serve."""
        try:
            await self.connection.command("PING")
        except ContractError as error:
            return str(error)
        return None

    async def stats(self) -> Stats:
        """Figures for a metrics scrape, read in one round trip."""
        keys, shards = self.turns.keys, range(SHARDS)
        workers, *replies = await self.connection.commands(
            [
                ("ZCARD", keys.workers()),
                *(("ZCARD", keys.ready(shard)) for shard in shards),
                *(("ZCARD", keys.leases(shard)) for shard in shards),
                *(("HGETALL", keys.totals(shard)) for shard in shards),
            ]
        )
        totals: dict[tuple[str, str], dict[str, Decimal]] = {}
        for stored in replies[2 * SHARDS :]:
            _add(totals, records.fields(stored))
        ready, running = sum(replies[:SHARDS]), sum(replies[SHARDS : 2 * SHARDS])
        return Stats(await self._waker.depth(), ready, running, workers, totals)

    def _place(self, tenant: str, conversation_id: str | None, key: str | None) -> Place:
        """Under an idempotency key the ids follow from the key, so that a repetition meets the same turn."""
        if key is None:
            return new_place(tenant, conversation_id or secrets.token_hex(8))
        if not 1 <= len(key) <= MAX_KEY_LENGTH or not key.isprintable():
            raise InvalidInput(
                f"an idempotency key is 1 to {MAX_KEY_LENGTH} printable characters", param="client_message_id"
            )
        digest = hashlib.sha256("\x00".join((tenant, conversation_id or "", key)).encode()).hexdigest()
        conversation = conversation_id or digest[20:36]
        return Place(f"{shard_of(tenant, conversation):02d}{digest[:20]}", tenant, conversation)


def check_conversation_id(conversation_id: str) -> None:
    """Raises InvalidInput unless the id can be a conversation's."""
    if not is_conversation_id(conversation_id):
        raise InvalidInput(
            "a conversation id is 1 to 128 characters of A-Z a-z 0-9 . _ -", param="conversation_id"
        )


def check_turn(request: TurnRequest, tools: frozenset[str]) -> None:
    """Raises InvalidInput naming the field that is wrong."""
    _check_request(request.message, request, "message", tools)


def check_batch(request: BatchRequest, tools: frozenset[str]) -> None:
    """Raises InvalidInput naming the field or item that is wrong."""
    if not 1 <= len(request.items) <= MAX_BATCH_ITEMS:
        raise InvalidInput(f"a batch has 1 to {MAX_BATCH_ITEMS} items", param="items")
    _check_parameters(request, "", tools)
    ids: set[str] = set()
    for index, item in enumerate(request.items):
        _check_request(item.message, item, f"items[{index}].message", tools)
        if item.id is not None:
            if item.id in ids:
                raise InvalidInput(f"the id {item.id!r} appears twice", param=f"items[{index}].id")
            ids.add(item.id)


def _check_request(
    message: str | list[dict[str, Any]], request: Any, param: str, tools: frozenset[str]
) -> None:
    _check_message(message, param)
    _check_parameters(request, param.removesuffix("message"), tools)


def _check_message(message: str | list[dict[str, Any]], param: str) -> None:
    if isinstance(message, str):
        if not message.strip():
            raise InvalidInput(f"{param} must not be empty", param=param)
    elif not message or not all(isinstance(part, dict) and "type" in part for part in message):
        raise InvalidInput(f"{param} must be a string or a list of parts with a type", param=param)
    try:
        size = len(records.encode(message))
    except UnicodeEncodeError:
        raise InvalidInput(f"{param} holds a lone surrogate, which is no character", param=param) from None
    if size > MAX_MESSAGE_BYTES:
        raise InvalidInput(f"{param} is longer than {MAX_MESSAGE_BYTES} bytes", param=param)


def _check_parameters(request: Any, prefix: str, tools: frozenset[str]) -> None:
    if request.temperature is not None and not 0 <= request.temperature <= 2:
        raise InvalidInput("temperature must be from 0 to 2", param=f"{prefix}temperature")
    if request.max_tokens is not None and request.max_tokens < 1:
        raise InvalidInput("max_tokens must be at least 1", param=f"{prefix}max_tokens")
    if request.model is not None and not request.model.strip():
        raise InvalidInput("model must not be empty", param=f"{prefix}model")
    unknown = set(request.tools or ()) - tools
    if unknown:
        known = ", ".join(sorted(tools))
        raise InvalidInput(f"unknown tool {min(unknown)!r}; known: {known}", param=f"{prefix}tools")


def _turn(identifier: str) -> str:
    if not is_turn_id(identifier):
        raise NotFound(f"turn {identifier[:64]!r} does not exist")
    return identifier


def _batch(identifier: str) -> str:
    if not is_batch_id(identifier):
        raise NotFound(f"batch {identifier[:64]!r} does not exist")
    return identifier


def _add(totals: dict[tuple[str, str], dict[str, Decimal]], stored: Mapping[str, bytes]) -> None:
    for name, amount in stored.items():
        provider, model, measure = name.rsplit("|", 2)
        sums = totals.setdefault((provider, model), {})
        value = records.usd(amount) if measure == "units" else Decimal(int(amount))
        label = "usd" if measure == "units" else measure
        sums[label] = sums.get(label, Decimal(0)) + value
