"""The ledger row by row: of a turn, a batch, a conversation, or of everything that a tenant has.

Rows live as long as the turn or the batch that they belong to; the sums in `usage` stay longer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final, NamedTuple, TypeAlias

import msgspec

from aiforge.core.types import Outcome, ProviderCall, Purpose, Usage
from worker.contract import records
from worker.contract.errors import InvalidInput, NotFound
from worker.contract.ids import SHARDS, is_batch, shard_of_id
from worker.contract.keys import Keys
from worker.contract.server.connection import Connection

READ_AT_A_TIME: Final = 100
"""Ledgers of turns that one round trip reads."""
LOOKED_AT: Final = 2_000
"""Turns and batches that one page looks through at most where a tenant's are asked for."""
_CHUNK: Final = 1_000
"""Rows of a batch that Redis gives at a time."""
_BEHIND_ALL: Final = 10**15 - 1
"""Stands for a time behind every row of a ledger."""


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A provider call as callers see it, and whose it is.

    `at` is when it was entered, in Unix seconds; it and `attempt` are None where an older version wrote the
    row. `cost` is USD, None while it is not known.
    """

    call_id: str
    turn_id: str | None
    batch_id: str | None
    index: int | None
    """Of the batch's item."""
    attempt: int | None
    at: float | None
    purpose: Purpose
    provider: str
    model: str
    outcome: Outcome
    usage: Usage | None
    cost: Decimal | None
    price_list: str | None
    error_code: str | None
    latency_ms: float | None
    first_token_ms: float | None


class Cursor(NamedTuple):
    """The last row that is known: its time in Unix milliseconds and its id."""

    at: int
    call_id: str


class LedgerPage(NamedTuple):
    """Rows, and the last one that was looked at where there may be more."""

    found: list[LedgerRow]
    next: Cursor | None


class Days(NamedTuple):
    """Days in UTC, both included; all where one is None."""

    first: date | None
    last: date | None

    def hold(self, call: ProviderCall) -> bool:
        if self == (None, None):
            return True
        day = None if call.at is None else datetime.fromtimestamp(call.at / 1000, UTC).date()
        return day is not None and (self.first or day) <= day <= (self.last or day)


_Place: TypeAlias = tuple[int, str, tuple[int, int, str]]
"""Where a row stands among all of a tenant: shard, turn or batch, and its place in that one's ledger."""


class Ledgers:
    """Reads rows of many ledgers; safe to share within one event loop."""

    def __init__(self, connection: Connection, keys: Keys, tenant: str) -> None:
        self._connection = connection
        self._keys = keys
        self._tenant = tenant

    async def page(
        self,
        *,
        turn_id: str | None = None,
        batch_id: str | None = None,
        conversation_id: str | None = None,
        days: Days = Days(None, None),  # noqa: B008  # a value
        after: Cursor | None = None,
        limit: int = 100,
    ) -> LedgerPage:
        """Up to `limit` rows of one of the three, the oldest first; or of all that the tenant has, turn by
        turn and batch by batch in the order of their ids, where a page may be short. What an older version
        wrote is of no day.

        Raises InvalidInput or NotFound.
        """
        if sum(given is not None for given in (turn_id, batch_id, conversation_id)) > 1:
            raise InvalidInput("only one of turn_id, batch_id and conversation_id can be given")
        if days.first is not None and days.last is not None and days.first > days.last:
            raise InvalidInput("must not be behind the last day", param="from")
        if conversation_id is not None:
            calls = await self._of_conversation(conversation_id)
        elif owner := turn_id or batch_id:
            calls = await self._of_owner(owner)
        else:
            return await self._of_tenant(days, after, limit)
        known = records.position(*after) if after else (-1, 0, "")
        rows = [call for call in sorted(calls, key=_position) if days.hold(call) and _position(call) > known]
        return _page(rows, limit)

    async def _of_owner(self, owner: str) -> list[ProviderCall]:
        batch = is_batch(owner)
        key = self._keys.batch(owner) if batch else self._keys.turn(owner)
        known = await self._connection.command("HGET", key, "tenant")
        if known is None or known.decode() != self._tenant:
            raise NotFound(f"{'batch' if batch else 'turn'} {owner!r} does not exist")
        return await self._read([owner])

    async def _of_conversation(self, conversation_id: str) -> list[ProviderCall]:
        if not await self._connection.command(
            "EXISTS", self._keys.conversation(self._tenant, conversation_id)
        ):
            raise NotFound(f"conversation {conversation_id!r} does not exist")
        turns = await self._connection.command(
            "ZRANGE", self._keys.turns(self._tenant, conversation_id), 0, -1
        )
        found: list[ProviderCall] = []
        for some in _parts([turn_id.decode() for turn_id in turns]):
            found += await self._read(some)
        return found

    async def _of_tenant(self, days: Days, after: Cursor | None, limit: int) -> LedgerPage:
        known = _place(*after) if after else (0, "", (0, 0, ""))
        found: list[ProviderCall] = []
        looked = 0
        async for owners in self._owners(known):
            calls = sorted(await self._read(owners), key=lambda call: _place(call.at, call.call_id))
            found += [call for call in calls if days.hold(call) and _place(call.at, call.call_id) > known]
            looked += len(owners)
            if len(found) > limit:
                break
            if looked >= LOOKED_AT:
                return LedgerPage([_row(call) for call in found], Cursor(_BEHIND_ALL, owners[-1]))
        return _page(found, limit)

    async def _owners(self, known: _Place) -> AsyncIterator[list[str]]:
        """A tenant's turns, some at a time, and batches, one by one, in order, from a known one on."""
        for shard in range(known[0], SHARDS):
            names, batches = await self._connection.commands(
                [
                    ("ZRANGE", self._keys.convs(self._tenant, shard), 0, -1),
                    ("ZRANGE", self._keys.batches(shard, self._tenant), 0, -1),
                ]
            )
            turns: list[str] = []
            for some in _parts([self._keys.turns(self._tenant, name.decode()) for name in names]):
                for found in await self._connection.commands([("ZRANGE", name, 0, -1) for name in some]):
                    turns += [turn_id.decode() for turn_id in found]
            for part in _parts(sorted(turn_id for turn_id in turns if (shard, turn_id) >= known[:2])):
                yield part
            for batch_id in sorted(name.decode() for name in batches):
                if (shard, batch_id) >= known[:2]:
                    yield [batch_id]

    async def _read(self, owners: Sequence[str]) -> list[ProviderCall]:
        """The rows of a few turns, or of one batch, whose thousands Redis does not give in one piece."""
        if is_batch(owners[0]):
            return await self._of_batch(owners[0])
        commands = [("HGETALL", self._keys.ledger(turn_id)) for turn_id in owners]
        return [call for reply in await self._connection.commands(commands) for call in records.calls(reply)]

    async def _of_batch(self, batch_id: str) -> list[ProviderCall]:
        rows: dict[str, bytes] = {}
        name, cursor = self._keys.ledger(batch_id), b"0"
        while True:
            cursor, part = await self._connection.command("HSCAN", name, cursor, "COUNT", _CHUNK)
            rows |= records.fields(part)
            if int(cursor) == 0:
                return [msgspec.json.decode(row, type=ProviderCall) for row in rows.values()]


def _parts(names: Sequence[str]) -> Iterator[list[str]]:
    for start in range(0, len(names), READ_AT_A_TIME):
        yield list(names[start : start + READ_AT_A_TIME])


def _position(call: ProviderCall) -> tuple[int, int, str]:
    return records.position(call.at, call.call_id)


def _place(at: int | None, call_id: str) -> _Place:
    owner = call_id.partition(".")[0]
    return shard_of_id(owner), owner, records.position(at, call_id)


def _page(calls: Sequence[ProviderCall], limit: int) -> LedgerPage:
    """The first of these rows; whether there are more is known from those beyond the limit."""
    shown = calls[:limit]
    more = len(calls) > limit
    return LedgerPage(
        [_row(call) for call in shown], Cursor(shown[-1].at or 0, shown[-1].call_id) if more else None
    )


def _row(call: ProviderCall) -> LedgerRow:
    owner, _, rest = call.call_id.partition(".")
    batch = is_batch(owner)
    fields = {name: getattr(call, name) for name in ProviderCall.__struct_fields__}
    fields["at"] = None if call.at is None else call.at / 1000
    return LedgerRow(
        turn_id=None if batch else owner,
        batch_id=owner if batch else None,
        index=int(rest.split(".")[1]) if batch else None,
        **fields,
    )
