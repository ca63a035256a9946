"""What was used and what it cost, by day: sums of the ledger that its own script keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final, Literal

import msgspec

from worker.contract import records
from worker.contract.errors import InvalidInput
from worker.contract.ids import SHARDS
from worker.contract.keys import Keys
from worker.contract.server.connection import Connection

Group = Literal["day", "provider", "model", "purpose"]
GROUPS: Final[tuple[Group, ...]] = ("day", "provider", "model", "purpose")
LONGEST: Final = 400
"""Days that are kept, and that one question may span."""
_FIRST: Final = date(1970, 1, 1)
_COUNTED: Final = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cached": "cached_tokens",
    "reasoning": "reasoning_tokens",
    "unpriced": "unpriced_calls",
}


class UsageRow(msgspec.Struct, kw_only=True):
    """The provider calls of one group. `cost` is USD of the calls that have a price, `unpriced_calls` counts
    the others; calls that were lost with their worker count with what they are estimated to have taken."""

    day: str | None = None
    provider: str | None = None
    model: str | None = None
    purpose: str | None = None
    calls: int = 0
    failed_calls: int = 0
    lost_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: Decimal = Decimal(0)
    estimated_cost: Decimal = Decimal(0)
    """The part of `cost` that no provider reported."""
    unpriced_calls: int = 0


def today() -> date:
    return datetime.now(UTC).date()


async def read_usage(
    connection: Connection,
    keys: Keys,
    tenant: str,
    *,
    first: date,
    last: date,
    group_by: Sequence[Group],
) -> list[UsageRow]:
    """A tenant's usage of some days (UTC, both included), a row for each group, sorted by what they are
    grouped by. Raises InvalidInput."""
    if unknown := set(group_by) - set(GROUPS):
        raise InvalidInput(
            f"group_by must be {', '.join(GROUPS[:-1])} or {GROUPS[-1]}, not {min(unknown)!r}",
            param="group_by",
        )
    if first > last:
        raise InvalidInput(f"from lies behind to: {first} is later than {last}", param="from")
    if (last - first).days >= LONGEST:
        raise InvalidInput(f"from {first} to {last} are more than {LONGEST} days", param="from")
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    replies = await connection.commands(
        [
            ("HGETALL", keys.usage(shard, tenant, (day - _FIRST).days))
            for day in days
            for shard in range(SHARDS)
        ]
    )
    rows: dict[tuple[str, ...], UsageRow] = {}
    for number, reply in enumerate(replies):
        _add(rows, records.fields(reply), days[number // SHARDS].isoformat(), group_by)
    return [rows[group] for group in sorted(rows)]


def _add(
    rows: dict[tuple[str, ...], UsageRow], stored: Mapping[str, bytes], day: str, group_by: Sequence[Group]
) -> None:
    for field, value in stored.items():
        provider, _, named = field.partition("|")
        model, purpose, measured = named.rsplit("|", 2)
        measure = measured.removeprefix(records.LOST)
        values = {"day": day, "provider": provider, "model": model, "purpose": purpose}
        group = {str(name): values[name] for name in group_by}
        row = rows.setdefault(tuple(group.values()), msgspec.convert(group, UsageRow))
        amount = int(value)
        if measure == "units":
            row.cost += records.usd(amount)
        elif measure == "estimated":
            row.estimated_cost += records.usd(amount)
        elif measure.startswith("calls:"):
            outcome = measure.removeprefix("calls:")
            row.calls += amount
            row.failed_calls += amount * (outcome in ("error", "aborted"))
            row.lost_calls += amount * (outcome == "lost")
        else:
            name = _COUNTED[measure]
            setattr(row, name, getattr(row, name) + amount)
