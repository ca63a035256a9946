"""Figures of the whole installation, as a metrics scrape wants them."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import msgspec

from worker.contract import records
from worker.contract.ids import SHARDS
from worker.contract.keys import Keys
from worker.contract.schemas import Lane
from worker.contract.server.connection import Connection
from worker.contract.wakeups.knock import Knocker
from worker.contract.wakeups.wake import Waker


class Stats(msgspec.Struct, frozen=True):
    """`depth` are wake-ups by lane, `ready` and `running` turns and slices.

    `totals` holds the ledger's sums per (provider, model): tokens by kind, calls by outcome, `usd`, the part
    of it that is `estimated`, `unpriced`; and under `lost:` the same of calls that died with their worker,
    which fall when it tells of them after all.
    """

    depth: dict[Lane, int]
    ready: int
    running: int
    workers: int
    totals: dict[tuple[str, str], dict[str, Decimal]]


async def read_stats(connection: Connection, keys: Keys, waker: Waker | Knocker) -> Stats:
    """Asks Redis once, and the broker."""
    shards = range(SHARDS)
    workers, *replies = await connection.commands(
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
    return Stats(await waker.depth(), ready, running, workers, totals)


def _add(totals: dict[tuple[str, str], dict[str, Decimal]], stored: Mapping[str, bytes]) -> None:
    for name, amount in stored.items():
        provider, _, named = name.partition("|")
        model, _, measure = named.rpartition("|")
        sums = totals.setdefault((provider, model), {})
        money = measure.removeprefix(records.LOST) in ("units", "estimated")
        value = records.usd(amount) if money else Decimal(int(amount))
        label = measure.replace("units", "usd")
        sums[label] = sums.get(label, Decimal(0)) + value
