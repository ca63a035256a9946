"""The one door to batches in Redis: items in, slices out to workers, rows back, each item once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final, Literal, NamedTuple

import msgspec

from aiforge.core.types import ProviderCall, Usage
from worker.contract import records
from worker.contract.connection import Connection
from worker.contract.errors import NotFound
from worker.contract.keys import Keys, new_batch_id
from worker.contract.link import Argument
from worker.contract.schemas import (
    BATCH_VERSION,
    Batch,
    BatchItem,
    BatchRequest,
    BatchRow,
    BatchState,
)
from worker.contract.settings import ContractSettings
from worker.contract.store import Refused
from worker.contract.upkeep import WAKE_MS

UPLOAD_TTL_MS: Final = 3_600_000
OVER: Final = frozenset({BatchState.COMPLETED, BatchState.CANCELLED})
"""No further row comes."""
UPLOAD_ITEMS: Final = 1_000
UPLOAD_BYTES: Final = 4 * 1024 * 1024
"""One call stores no more than this, or one item: it has to arrive within a command's time."""


class Slice(NamedTuple):
    """Items of a batch that this worker may run until its lease ends; what is done already is left out."""

    batch_id: str
    start: int
    fence: int
    suspect: bool
    waited: float
    """Seconds from the batch's submission to this claim."""
    token: str
    defaults: BatchRequest
    items: list[tuple[int, BatchItem]]

    @property
    def work(self) -> str:
        return f"{self.batch_id}/{self.start}"

    def call_id(self, index: int, number: int) -> str:
        """The id of an item's provider call; number 1 is entered in the ledger by the claim."""
        return f"{self.batch_id}.{self.token}.{index}.{number}"


class Stored(NamedTuple):
    """Whether rows were accepted, and whether more items wait to be handed out."""

    accepted: bool
    more: bool
    state: str


class BatchStore:
    """Typed access to batches; safe to share within one event loop."""

    def __init__(self, connection: Connection, settings: ContractSettings) -> None:
        self.connection = connection
        self.settings = settings
        self.keys = Keys(settings.namespace)
        self._ttl_ms = int(settings.batch_ttl_seconds * 1000)

    async def create(self, request: BatchRequest, tenant: str) -> Batch:
        """Store all items, then open the batch: it exists whole or not at all."""
        batch_id = new_batch_id(tenant)
        items = self.keys.items(batch_id)
        offset = 0
        for part in _parts(request.items):
            await self.connection.run("batch_items", [items], [offset, UPLOAD_TTL_MS, *part])
            offset += len(part)
        defaults = records.encode(msgspec.structs.replace(request, items=[]))
        arguments: list[Argument] = [
            batch_id, tenant, BATCH_VERSION, len(request.items), self.settings.batch_window, defaults,
            WAKE_MS,
        ]  # fmt: skip
        await self._transition("batch_open", batch_id, arguments)
        return await self.get(batch_id, tenant)

    async def get(self, batch_id: str, tenant: str) -> Batch:
        """Raises NotFound when the tenant has no such batch."""
        return records.batch(batch_id, await self._record(batch_id, tenant))

    async def rows(self, batch_id: str, tenant: str, after: int, limit: int) -> list[BatchRow]:
        """Up to `limit` rows from index `after` on: to the first that is not there, or when the batch is over
        all that will ever be there."""
        record = await self._record(batch_id, tenant)
        total, over = int(record["total"]), record["state"].decode() in OVER
        rows: list[BatchRow] = []
        while after < total and len(rows) < limit:
            indexes = range(after, min(after + limit, total))
            for row in await self.connection.command("HMGET", self.keys.rows(batch_id), *indexes):
                if row is not None and len(rows) < limit:
                    rows.append(msgspec.json.decode(row, type=BatchRow))
                elif not over:
                    return rows
            after = indexes.stop
        return rows

    async def cancel(self, batch_id: str, tenant: str) -> Batch:
        """Running items end, no further one begins; a finished batch stays as it is."""
        await self._record(batch_id, tenant)
        await self._transition("batch_cancel", batch_id, [batch_id, self._ttl_ms])
        return await self.get(batch_id, tenant)

    async def claim(self, batch_id: str, token: str, first_call: ProviderCall) -> Slice | Refused:
        """Take the next slice; the first provider call of each item is entered in the ledger with it."""
        row = records.encode(msgspec.structs.replace(first_call, call_id="CALL"))
        lease_ms = int(self.settings.lease_seconds * 1000)
        arguments: list[Argument] = [
            batch_id, lease_ms, BATCH_VERSION, self.settings.suspect_after, token, row,
        ]  # fmt: skip
        why, *rest = await self._transition("batch_claim", batch_id, arguments)
        if why != b"claimed":
            return Refused(why.decode(), rest[0].decode() if rest else "")
        start, _, fence, suspect, now, created, defaults, work = rest
        items = [
            (int(work[index]), msgspec.json.decode(work[index + 1], type=BatchItem))
            for index in range(0, len(work), 2)
        ]
        return Slice(
            batch_id,
            int(start),
            int(fence),
            bool(suspect),
            (int(now) - int(created)) / 1000,
            token,
            msgspec.json.decode(defaults, type=BatchRequest),
            items,
        )

    async def store(
        self,
        batch_id: str,
        start: int,
        fence: int,
        rows: Sequence[BatchRow],
        *,
        calls: Sequence[ProviderCall],
        over: bool,
    ) -> Stored:
        """Write results, each item once; `over` gives the slice back. The calls are settled in any case."""
        arguments: list[Argument] = [
            batch_id, start, fence, int(over), self._ttl_ms, len(calls), len(rows), *records.settled(calls),
        ]  # fmt: skip
        for row in rows:
            arguments += _row_arguments(row)
        answer, more, state = await self._transition("batch_rows", batch_id, arguments)
        return Stored(answer == b"ok", bool(more), records.text(state))

    async def release(
        self, batch_id: str, start: int, fence: int | None, *, calls: Sequence[ProviderCall] = ()
    ) -> Literal["queued", "refused", "over"]:
        """Take a slice from its worker: with its fence a hand-back, with None after its lease ran out."""
        arguments: list[Argument] = [
            batch_id, start, "" if fence is None else fence, self.settings.suspect_after, WAKE_MS,
            self._ttl_ms, len(calls), *records.settled(calls),
        ]  # fmt: skip
        (answer,) = await self._transition("batch_release", batch_id, arguments)
        match answer:
            case b"queued":
                return "queued"
            case b"over":
                return "over"
            case _:
                return "refused"

    async def calls(self, taken: Slice) -> list[ProviderCall]:
        """The provider calls that were made under one claim, or are about to be."""
        found: list[ProviderCall] = []
        for index, _ in taken.items:
            for number in count(1):
                call_id = taken.call_id(index, number)
                row = await self.connection.command("HGET", self.keys.ledger(taken.batch_id), call_id)
                if row is None:
                    break
                found.append(msgspec.json.decode(row, type=ProviderCall))
        return found

    async def waiting(self, batch_id: str) -> int:
        """How many more slices could be running now; 0 when the batch is over."""
        names = ("state", "total", "cursor", "running", "window")
        reply = await self.connection.command("HMGET", self.keys.batch(batch_id), *names)
        if reply[0] is None or reply[0].decode() != BatchState.IN_PROGRESS:
            return 0
        total, cursor, running, window = (int(value) for value in reply[1:])
        redo = await self.connection.command("LLEN", self.keys.redo(batch_id))
        return int(max(0, min(window - running, total - cursor + redo)))

    async def _transition(self, script: str, batch_id: str, arguments: Sequence[Argument]) -> Any:
        return await self.connection.run(script, self.keys.of_batch(batch_id), arguments)

    async def _record(self, batch_id: str, tenant: str) -> dict[str, bytes]:
        record = records.fields(await self.connection.command("HGETALL", self.keys.batch(batch_id)))
        if record.get("tenant") != tenant.encode():
            raise NotFound(f"batch {batch_id!r} does not exist")
        return record


def _parts(items: Sequence[BatchItem]) -> Iterator[list[bytes]]:
    part: list[bytes] = []
    size = 0
    for encoded in map(records.encode, items):
        if part and (len(part) == UPLOAD_ITEMS or size + len(encoded) > UPLOAD_BYTES):
            yield part
            part, size = [], 0
        part.append(encoded)
        size += len(encoded)
    yield part


def _row_arguments(row: BatchRow) -> list[Argument]:
    usage = row.usage or Usage()
    return [
        row.index, records.encode(row), int(row.status == "ok"), usage.input_tokens, usage.output_tokens,
        usage.cached_tokens, usage.reasoning_tokens, records.units(row.cost),
        int(row.cost is None and row.usage is not None), row.latency_ms or 0,
    ]  # fmt: skip
