"""What the clients ask about provider calls, one by one."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Final

import msgspec

from aiforge.client.calls import Call, one
from aiforge.core.types import Usage

PAGE_ROWS: Final = 1_000


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A provider call: whose it is, and what became of it. `cost` is USD, None while it is not known."""

    call_id: str
    turn_id: str | None = None
    batch_id: str | None = None
    index: int | None = None
    """Of the batch's item."""
    attempt: int | None = None
    at: float | None = None
    """When it was entered, in Unix seconds."""
    purpose: str
    provider: str
    model: str
    outcome: str
    """`intended` while it is under way, then `ok`, `error`, `aborted` or, when its worker died, `lost`."""
    usage: Usage | None = None
    cost: Decimal | None = None
    price_list: str | None = None
    error_code: str | None = None
    latency_ms: float | None = None
    first_token_ms: float | None = None


class Listed(msgspec.Struct):
    """Some rows, and what `after` has to be for the next ones."""

    data: list[LedgerRow]
    next: str | None = None


_listed: Final = one(Listed)


def page(
    *,
    turn_id: str | None,
    batch_id: str | None,
    conversation_id: str | None,
    first: date | None,
    last: date | None,
    after: str | None,
) -> Call[Listed]:
    asked = {
        "turn_id": turn_id,
        "batch_id": batch_id,
        "conversation_id": conversation_id,
        "from": first.isoformat() if first else None,
        "to": last.isoformat() if last else None,
        "after": after,
        "limit": str(PAGE_ROWS),
    }
    return Call("GET", "/v1/usage/calls", _listed, params={k: v for k, v in asked.items() if v is not None})
