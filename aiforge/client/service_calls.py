"""The requests about the service as a whole: what it has spent, how models fare, whether it can serve."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Final

from aiforge.client.call import CONNECT_SECONDS, Call, Listed, Page, listed, nothing, one, pages, said
from aiforge.client.results import LedgerRow, ModelHealth, UsageReport

PAGE_CALLS: Final = 1000
_usage: Final = one(UsageReport)
_models: Final = listed(ModelHealth)


def usage(group_by: Sequence[str], first: date | None, last: date | None) -> Call[UsageReport]:
    params = said(group_by=list(group_by) or None, **_days(first, last))
    return Call("GET", "/v1/usage", _usage, params=params)


def ledger(
    *,
    turn_id: str | None,
    batch_id: str | None,
    conversation_id: str | None,
    first: date | None,
    last: date | None,
    after: str | None = None,
) -> Call[Page[LedgerRow]]:
    asked = {"turn_id": turn_id, "batch_id": batch_id, "conversation_id": conversation_id}
    params = said(**asked, **_days(first, last), after=after, limit=str(PAGE_CALLS))
    return pages(
        LedgerRow,
        "/v1/usage/calls",
        params,
        lambda answer: ledger(**asked, first=first, last=last, after=answer.next),
    )


def _days(first: date | None, last: date | None) -> dict[str, str | None]:
    return {name: day.isoformat() if day else None for name, day in (("from", first), ("to", last))}


def providers() -> Call[Listed[ModelHealth]]:
    return Call("GET", "/v1/providers", _models)


def reset_provider(name: str) -> Call[None]:
    return Call("POST", "/v1/providers/reset", nothing, params={"name": name}, settled=True)


def ready() -> Call[None]:
    return Call("GET", "/readyz", nothing, seconds=CONNECT_SECONDS)
