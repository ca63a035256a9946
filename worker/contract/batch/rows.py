"""A batch's results as callers read them: in the order of its items, or as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from itertools import takewhile
from typing import Final

import msgspec

from worker.contract import records
from worker.contract.errors import NotFound
from worker.contract.keys import Keys
from worker.contract.schemas import BATCH_OVER, BatchRow
from worker.contract.server.connection import Connection
from worker.contract.settings import ContractSettings

PAGE: Final = 500
"""No more rows are read at a time."""
READ_BYTES: Final = 2 * 1024 * 1024
"""About as much is read at a time, or one row."""
_FREE: Final = Decimal(0)


class BatchRows:
    """The part of `BatchStore` that reads results."""

    def __init__(self, connection: Connection, settings: ContractSettings) -> None:
        self.connection = connection
        self.settings = settings
        self.keys = Keys(settings.namespace)

    async def rows(self, batch_id: str, tenant: str, after: int, limit: int) -> list[BatchRow]:
        """Up to `limit` rows from index `after` on: to the first that is not there, or when the batch is over
        all that will ever be there."""
        return [row async for part in self.parts(batch_id, tenant, after, limit) for row in part]

    async def parts(
        self, batch_id: str, tenant: str, after: int, limit: int
    ) -> AsyncIterator[list[BatchRow]]:
        """What `rows` returns, some at a time."""
        record = await self._record(batch_id, tenant)
        total, over = int(record["total"]), record["state"].decode() in BATCH_OVER
        while after < total and limit > 0:
            read = await self.read_rows(batch_id, range(after, min(after + min(limit, PAGE), total)))
            wanted = read if over else list(takewhile(lambda row: row is not None, read))
            found = [row for row in wanted if row is not None]
            yield found
            if len(wanted) < len(read):
                return
            after, limit = after + len(read), limit - len(found)

    async def read_rows(self, batch_id: str, indexes: Sequence[int]) -> list[BatchRow | None]:
        """The rows of the first of these items, as many as are read at a time; None where there is none."""
        name = self.keys.rows(batch_id)
        found: list[bytes | None] = await self.connection.run("batch_read", [name], [READ_BYTES, *indexes])
        repeated = {row: _repeated(row) for row in found if row is not None and row.startswith((b"=", b"!"))}
        firsts: dict[int, bytes | None] = {}
        if repeated:
            earlier = sorted({first for first, _ in repeated.values()})
            firsts = dict(zip(earlier, await self.connection.command("HMGET", name, *earlier), strict=True))
        rows: list[BatchRow | None] = []
        for index, row in zip(indexes, found, strict=False):
            first, own = (index, None) if row is None else repeated.get(row, (index, None))
            stored = firsts.get(first, row) if row in repeated else row
            decoded = None if stored is None else msgspec.json.decode(stored, type=BatchRow)
            if row is not None and row.startswith(b"!") and decoded is not None and decoded.status == "ok":
                # It shared the failure of the first, which has an answer by now; its own turn is to come.
                decoded = None
            if decoded is not None and row in repeated:
                decoded = msgspec.structs.replace(
                    decoded, index=index, id=own, deduplicated=first, cost=_FREE, usage=None, attempts=0,
                    latency_ms=None,
                )  # fmt: skip
            rows.append(decoded)
        return rows

    async def arrived(self, batch_id: str, after: int) -> list[BatchRow | None]:
        """Some of the rows in the order in which they came, without the first `after`; None for one that was
        taken out again to be made anew."""
        last = after + PAGE - 1
        order = await self.connection.command("LRANGE", self.keys.order(batch_id), after, last)
        if not order:
            return []
        listed = [entry.decode().partition(":") for entry in order]
        tries = [f"try:{index}" for index, _, _ in listed]
        tried = await self.connection.command("HMGET", self.keys.slices(batch_id), *tries)
        rows = await self.read_rows(batch_id, [int(index) for index, _, _ in listed])
        return [
            row if int(then or 0) == int(now or 0) else None
            for (_, _, then), now, row in zip(listed, tried, rows, strict=False)
        ]

    async def last_row(self, batch_id: str) -> int:
        """How many rows have come so far."""
        return int(await self.connection.command("LLEN", self.keys.order(batch_id)))

    async def _record(self, batch_id: str, tenant: str) -> dict[str, bytes]:
        record = records.fields(await self.connection.command("HGETALL", self.keys.batch(batch_id)))
        if record.get("tenant") != tenant.encode():
            raise NotFound(f"batch {batch_id!r} does not exist")
        return record


def _repeated(row: bytes) -> tuple[int, str | None]:
    first, _, own = row.lstrip(b"!=").partition(b" ")
    return int(first), msgspec.json.decode(own, type=str | None)
