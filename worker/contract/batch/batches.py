"""The one door to batches in Redis: items in, slices out to workers, rows back, each item once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, Final, Literal, NamedTuple

import msgspec

from aiforge.core.types import ProviderCall
from worker.contract import records
from worker.contract.batch.entries import bare, conversations_of, entries_of, parts_of
from worker.contract.batch.line_schemas import LineItem
from worker.contract.batch.rows import BatchRows
from worker.contract.checks import window_seconds
from worker.contract.claims import Refused
from worker.contract.errors import Conflict, KeyReused
from worker.contract.ids import SHARDS, keyed_batch_id, new_batch_id
from worker.contract.index import STOOD_MS, Index
from worker.contract.schemas import (
    BATCH_OVER,
    BATCH_VERSION,
    INDEPENDENT_BATCH_VERSION,
    TURNS_BATCH_VERSION,
    Batch,
    BatchItem,
    BatchRequest,
    BatchRow,
    BatchState,
)
from worker.contract.server.connection import Connection
from worker.contract.server.link import Argument
from worker.contract.settings import ContractSettings
from worker.contract.upkeep import WAKE_MS

SOON_MS: Final = 500
"""How soon workers are woken for a batch again that had to wait."""
UPLOAD_TTL_MS: Final = 3_600_000
NAMED: Final = 256
"""Of so many batches the names of their keys are kept: making all of them anew costs as much as a call."""
VALIDATE: Final = -1
FINALIZE: Final = -2
"""The steps of a batch that comes as a file, in place of a slice's first index."""
NO_ROWS: Final[Mapping[int, bytes]] = {}


class Slice(NamedTuple):
    """Items of a batch that this worker may run until its lease ends; what is done already is left out.

    Instead it can be one of the batch's steps, which have no items.
    """

    batch_id: str
    start: int
    fence: int
    suspect: bool
    waited: float
    """Seconds from the batch's submission to this claim."""
    token: str
    defaults: BatchRequest
    items: list[tuple[int, BatchItem | LineItem]]
    tenant: str
    retried: int = 0
    """How often an item that is a turn was run again; each time it is another turn."""
    attempt: int = 1
    """One more than the crashes that the slice was in: also of those of its items that no crash met."""
    api_key: str | None = None
    """The name of the key that the batch was posted with."""

    @property
    def work(self) -> str:
        return f"{self.batch_id}/{self.start}"

    def call_id(self, index: int, number: int) -> str:
        """The id of an item's provider call; number 1 is entered in the ledger by the claim."""
        return f"{self.batch_id}.{self.token}.{index}.{number}"


class Stored(NamedTuple):
    """Whether rows were accepted, and whether there is more work to hand out."""

    accepted: bool
    more: bool
    state: str
    left: bool = False
    """A worker was refused work before, and may have taken the batch out of the sharing of slots."""


class BatchStore(BatchRows):
    """Typed access to batches; safe to share within one event loop."""

    def __init__(self, connection: Connection, settings: ContractSettings) -> None:
        super().__init__(connection, settings)
        self._index = Index(connection)
        self._names = lru_cache(maxsize=NAMED)(self.keys.of_batch)
        self._ttl_ms = int(settings.batch_ttl_seconds * 1000)

    async def create(
        self,
        request: BatchRequest,
        tenant: str,
        batch_id: str | None = None,
        *,
        key: str | None = None,
        api_key: str | None = None,
    ) -> Batch:
        """Store all items, then open the batch: it exists whole or not at all. Under its id a repetition
        stores nothing twice.

        The same key and request give the same batch; raises Conflict (`idempotency_mismatch`).
        """
        batch_id, digest = batch_id or new_batch_id(tenant), ""
        if key is not None:
            batch_id, digest = _keyed(request, tenant, key)
            if await self._reserved(batch_id, digest):
                return msgspec.structs.replace(await self.get(batch_id, tenant), replayed=True)
        await self.add_items(batch_id, 0, entries_of(request))
        defaults = records.encode(msgspec.structs.replace(request, items=[]))
        turns = any(item.conversation is not None for item in request.items)
        version = TURNS_BATCH_VERSION if turns else INDEPENDENT_BATCH_VERSION
        if request.cache_ttl:
            version = BATCH_VERSION
        fields: list[Argument] = [
            "version", version, "window", self.settings.batch_window, "defaults", defaults,
            "digest", digest,
        ]  # fmt: skip
        if request.input_file_id is not None:
            fields += ["input_file", request.input_file_id]
        if turns:
            fields += ["turns", 1]
        if api_key is not None:
            fields += ["api_key", api_key]
        state = BatchState.IN_PROGRESS if request.input_file_id is None else BatchState.VALIDATING
        arguments = [batch_id, tenant, state, len(request.items), _window_ms(request), WAKE_MS, *fields]
        await self._transition("batch_open", batch_id, arguments)
        return await self.get(batch_id, tenant)

    async def known(self, request: BatchRequest, tenant: str, key: str) -> Batch | None:
        """The batch that key and request have made before; raises Conflict (`idempotency_mismatch`)."""
        batch_id, digest = _keyed(request, tenant, key)
        name = self.keys.batch(batch_id)
        earlier, state = await self.connection.command("HMGET", name, "digest", "state")
        if state is None:
            return None
        if earlier != digest.encode():
            raise KeyReused
        return msgspec.structs.replace(await self.get(batch_id, tenant), replayed=True)

    async def _reserved(self, batch_id: str, digest: str) -> bool:
        """Whether the batch exists already."""
        names = [self.keys.batch(batch_id)]
        answer = await self.connection.run("batch_reserve", names, [digest, UPLOAD_TTL_MS])
        if answer == b"mismatch":
            raise KeyReused
        return bool(answer == b"known")

    async def add_items(
        self, batch_id: str, offset: int, entries: Iterable[bytes], rows: Mapping[int, bytes] = NO_ROWS
    ) -> int:
        """Store items from `offset` on, as `batch_items` takes them, and rows that are known of them already.

        Returns the offset behind them.
        """
        keys = self.keys
        names = [keys.items(batch_id), keys.rows(batch_id), keys.talks(batch_id), keys.order(batch_id)]
        for part in parts_of(entries):
            behind = offset + len(part)
            known = [one for pair in rows.items() if offset <= pair[0] < behind for one in pair]
            arguments = [offset, UPLOAD_TTL_MS, len(part), len(known) // 2, *part, *known]
            await self.connection.run("batch_items", names, [*arguments, *conversations_of(offset, part)])
            offset = behind
        return offset

    async def get(self, batch_id: str, tenant: str) -> Batch:
        """Raises NotFound when the tenant has no such batch."""
        return records.batch(batch_id, await self._record(batch_id, tenant))

    async def owner(self, batch_id: str) -> tuple[str, float | None] | None:
        """The tenant of a batch and when its time is over; None when it is gone."""
        tenant, ends = await self.connection.command(
            "HMGET", self.keys.batch(batch_id), "tenant", "expires_at"
        )
        return None if tenant is None else (tenant.decode(), records.seconds(ends))

    async def page(self, tenant: str, *, after: str | None = None, limit: int = 20) -> list[Batch]:
        """Batches of a tenant, the newest first, behind the one named by `after`; raises NotFound."""
        position, found = None, list[Batch]()
        if after is not None:
            stood = await self._index.stood(self.keys.stood(tenant, after))
            position = stood or round((await self.get(after, tenant)).created_at * 1000), after
        names = [self.keys.batches(shard, tenant) for shard in range(SHARDS)]
        async for batch_id, record in self._index.records(names, position, limit, own=self.keys.batch):
            found.append(records.batch(batch_id, record))
            if len(found) == limit:
                break
        return found

    async def cancel(self, batch_id: str, tenant: str) -> bool:
        """Running items end, no further one begins; whether there is a step to wake a worker for.

        Raises Conflict (`batch_over`) when there is nothing left to cancel; a cancelled batch stays as it is.
        """
        await self._record(batch_id, tenant)
        state, step = await self._transition("batch_cancel", batch_id, [batch_id, self._ttl_ms, WAKE_MS])
        if state in (b"finalizing", b"completed", b"failed", b"expired"):
            raise Conflict(f"batch {batch_id!r} is {state.decode()} by now", code="batch_over")
        return bool(step)

    async def pause(self, batch_id: str, tenant: str, *, pause: bool) -> None:
        """Let no further item begin, or let the batch go on; raises Conflict (`batch_not_running`)."""
        await self._record(batch_id, tenant)
        state = await self._transition("batch_pause", batch_id, [batch_id, int(pause), WAKE_MS])
        if state not in (b"in_progress", b"validating"):
            raise Conflict(f"batch {batch_id!r} is {state.decode()}", code="batch_not_running")

    async def retry(self, batch_id: str, tenant: str) -> None:
        """Run again what has failed or was never run; Conflict (`batch_running`, `batch_failed`, …)."""
        record = await self._record(batch_id, tenant)
        defaults = msgspec.json.decode(record["defaults"], type=BatchRequest)
        runs = int(record.get("runs", 1))
        arguments: list[Argument] = [batch_id, runs, _window_ms(defaults), WAKE_MS]
        answer = await self._transition("batch_retry", batch_id, arguments)
        if answer == b"nothing":
            why = "those that failed are wrong in themselves" if int(record["failed"]) else "none has failed"
            why = why if int(record["total"]) else "its lines were never read to the end, so post it again"
            raise Conflict(f"no item of batch {batch_id!r} can run again: {why}", code="nothing_to_retry")
        if answer == b"failed":
            raise Conflict(
                f"batch {batch_id!r} has failed before any item could run: mend its file and post it again",
                code="batch_failed",
            )
        if answer != b"ok":
            raise Conflict(f"batch {batch_id!r} is {answer.decode()}", code="batch_running")

    async def delete(self, batch_id: str, tenant: str) -> None:
        """Forget a batch that is over, its rows and its calls; NotFound, Conflict (`batch_running`)."""
        await self._record(batch_id, tenant)
        state = await self._transition(
            "batch_delete", batch_id, [batch_id, self.keys.stood(tenant, batch_id), STOOD_MS]
        )
        if state and state.decode() not in BATCH_OVER:
            raise Conflict(f"batch {batch_id!r} is {state.decode()}: cancel it first", code="batch_running")

    async def due(self, batch_id: str) -> bool:
        """End a batch whose time is over; whether there is a step to wake a worker for."""
        return bool(await self._transition("batch_due", batch_id, [batch_id, self._ttl_ms, WAKE_MS]))

    async def claim(self, batch_id: str, token: str, first_call: ProviderCall) -> Slice | Refused:
        """Take the next slice; the first provider call of each item is entered in the ledger with it."""
        row = records.encode(msgspec.structs.replace(first_call, call_id="CALL"))
        lease_ms = int(self.settings.lease_seconds * 1000)
        arguments: list[Argument] = [
            batch_id, lease_ms, BATCH_VERSION, self.settings.suspect_after, token, row,
        ]  # fmt: skip
        why, *rest = await self._transition("batch_claim", batch_id, arguments)
        while why == b"refused" and rest[0] == b"looking":
            why, *rest = await self._transition("batch_claim", batch_id, arguments)
        if why != b"claimed":
            return Refused(why.decode(), rest[0].decode() if rest else "")
        start, _, fence, suspect, now, created, stored, work, tenant, retried, attempt, api_key = rest
        defaults = msgspec.json.decode(stored, type=BatchRequest)
        items = [(int(work[index]), _item(work[index + 1], defaults)) for index in range(0, len(work), 2)]
        waited = (int(now) - int(created)) / 1000
        return Slice(
            batch_id, int(start), int(fence), bool(suspect), waited, token, defaults, items, tenant.decode(),
            int(retried or 0), int(attempt), records.text(api_key) or None,
        )  # fmt: skip

    async def store(
        self,
        batch_id: str,
        start: int,
        fence: int,
        rows: Sequence[BatchRow],
        *,
        calls: Sequence[ProviderCall],
        over: bool,
        turn_calls: Sequence[ProviderCall] = (),
    ) -> Stored:
        """Write results, each item once; `over` gives the slice back. The calls are settled in any case.

        Where the one row is a turn's, `turn_calls` are all of its calls: its own ledger has counted them, and
        the sums of the batch gain them with the row.
        """
        arguments: list[Argument] = [
            batch_id, start, fence, int(over), self._ttl_ms, WAKE_MS, len(calls), len(rows),
            *records.settled(calls),
        ]  # fmt: skip
        for row in rows:
            ok = 2 if row.cached else int(row.status == "ok")
            arguments += [row.index, records.encode(row), ok, row.latency_ms or 0]
        arguments += records.sums(turn_calls)
        answer, more, state, left = await self._transition("batch_rows", batch_id, arguments)
        return Stored(answer == b"ok", bool(more), records.text(state), bool(left))

    async def release(
        self,
        batch_id: str,
        start: int,
        fence: int | None,
        *,
        calls: Sequence[ProviderCall] = (),
        again_in: float | None = None,
    ) -> Literal["queued", "refused", "over"]:
        """Take a slice from its worker: with its fence a hand-back, with None after its lease ran out.

        With `again_in`, in seconds, workers are woken then, and no slice of the batch is given out before.
        """
        waits_ms, wake_ms = (0, WAKE_MS) if again_in is None else (math.ceil(again_in * 1000), SOON_MS)
        arguments: list[Argument] = [
            batch_id, start, "" if fence is None else fence, self.settings.suspect_after, wake_ms,
            self._ttl_ms, waits_ms, len(calls), *records.settled(calls),
        ]  # fmt: skip
        (answer,) = await self._transition("batch_release", batch_id, arguments)
        match answer:
            case b"queued":
                return "queued"
            case b"over":
                return "over"
            case _:
                return "refused"

    async def left_behind(self, batch_id: str, start: int) -> Slice | None:
        """A slice as its worker had it, its duplicates left out; None when nobody has it."""
        whose = ("HMGET", self.keys.batch(batch_id), "tenant", "defaults")
        held = ("HGET", self.keys.slices(batch_id), start)
        record, entry = await self.connection.commands([whose, held])
        if entry is None or record[0] is None or start < 0:
            return None
        size, _, token = entry.decode().split(":")
        defaults = msgspec.json.decode(record[1], type=BatchRequest)
        last = start + int(size) - 1
        entries = await self.connection.command("LRANGE", self.keys.items(batch_id), start, last)
        items = [
            (start + offset, _item(stored, defaults))
            for offset, stored in enumerate(entries)
            if stored.startswith(b"{")
        ]
        return Slice(batch_id, start, 0, False, 0, token, defaults, items, record[0].decode())

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
        """How many more slices could be running now; 0 when the batch is over, and 1 for a step."""
        keys, names = self.keys, ("state", "total", "cursor", "running", "window", "step", "paused_at")
        reply, redo, again, held = await self.connection.commands(
            [
                ("HMGET", keys.batch(batch_id), *names),
                ("LLEN", keys.redo(batch_id)),
                ("LLEN", keys.again(batch_id)),
                ("HMGET", keys.slices(batch_id), VALIDATE, FINALIZE),
            ]
        )
        if reply[5] is not None:
            return int(held == [None, None])
        if reply[0] is None or reply[0].decode() != BatchState.IN_PROGRESS or reply[6] is not None:
            return 0
        total, cursor, running, window = (int(value) for value in reply[1:5])
        return int(max(0, min(window - running, total - cursor + redo + again)))

    async def _transition(self, script: str, batch_id: str, arguments: Sequence[Argument]) -> Any:
        return await self.connection.run(script, self._names(batch_id), arguments)


def _keyed(request: BatchRequest, tenant: str, key: str) -> tuple[str, str]:
    """The id of the batch that a key makes, and the digest of what is asked for."""
    return keyed_batch_id(tenant, key), hashlib.sha256(records.encode(request)).hexdigest()


def _item(entry: bytes, defaults: BatchRequest) -> BatchItem | LineItem:
    """A line of a file that continues a conversation is stored as the item that it means."""
    is_line = defaults.endpoint is not None and not entry.startswith(b">")
    return msgspec.json.decode(bare(entry), type=LineItem if is_line else BatchItem)


def _window_ms(request: BatchRequest) -> Argument:
    return "" if request.completion_window is None else int(window_seconds(request.completion_window) * 1000)
