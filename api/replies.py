"""Replies as JSON: contract structs in, bytes out. Money leaves as plain decimal strings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
from starlette.responses import Response

from aiforge.core.texts import one_line
from aiforge.core.types import Usage
from worker.contract.calls.rows import LedgerPage
from worker.contract.calls.usage import UsageRow
from worker.contract.memory.history import Page
from worker.contract.schemas import BATCH_OVER, Batch, BatchRow, BatchState, StoredMessage, Turn

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ENDPOINT: Final = "/v1/turns"
"""What a batch's items are, in the words of OpenAI's batch object."""

INLINE: Final = "inline"
"""Stands where OpenAI's object names a file: the items came in the request."""
NO_LIMIT: Final = "24h"
"""Stands where OpenAI's object names a span and the batch has none."""

_TURN_FIELDS: Final = tuple(name for name in Turn.__struct_fields__ if name != "replayed")
_encode: Final = msgspec.json.Encoder().encode


def reply(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encode(value), status_code=status, headers=headers, media_type=JSON)


def turn(value: Turn) -> dict[str, Any]:
    fields = {name: getattr(value, name) for name in _TURN_FIELDS}
    fields["cost"], fields["estimated_cost"] = money(value.cost), money(value.estimated_cost)
    if value.question is not None:
        question = _fields(value.question)
        del question["call_id"]
        fields["question"] = question
    return fields


def turns(values: Sequence[Turn]) -> dict[str, Any]:
    return {"object": "list", "data": [turn(value) for value in values], "has_more": False}


def conversations(page: Page) -> dict[str, Any]:
    data = [{**_fields(value), "last_turn_at": when / 1000} for when, value in page.found]
    cursor = None if page.next is None else "{}:{}".format(*page.next)
    return {"object": "list", "data": data, "has_more": cursor is not None, "next": cursor}


def page(values: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """OpenAI's list of up to `limit` objects; one more among `values` says that there are more."""
    shown = values[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(values) > limit,
    }


def messages(values: Sequence[StoredMessage], *, has_more: bool) -> dict[str, Any]:
    return {"object": "list", "data": values, "has_more": has_more}


def batch(value: Batch) -> dict[str, Any]:
    """OpenAI's batch object; its times are whole seconds."""
    state, finished = value.state, _second(value.finished_at)
    return {
        "id": value.batch_id,
        "object": "batch",
        "endpoint": value.endpoint or ENDPOINT,
        "errors": None if value.errors is None else {"object": "list", "data": value.errors.data},
        "input_file_id": value.input_file_id or INLINE,
        "output_file_id": value.output_file_id,
        "error_file_id": value.error_file_id,
        "completion_window": value.completion_window or NO_LIMIT,
        "status": state,
        "created_at": int(value.created_at),
        "in_progress_at": _second(value.started_at),
        "expires_at": _second(value.expires_at),
        "finalizing_at": _second(value.finalizing_at),
        "completed_at": finished if state is BatchState.COMPLETED else None,
        "failed_at": finished if state is BatchState.FAILED else None,
        "expired_at": finished if state is BatchState.EXPIRED else None,
        "cancelling_at": _second(value.cancelled_at),
        "cancelled_at": finished if state is BatchState.CANCELLED else None,
        "request_counts": {"total": value.total, "completed": value.completed, "failed": value.failed},
        "model": value.model,
        "metadata": value.metadata,
        "usage": _usage(value.usage),
        "cost": money(value.cost),
        "estimated_cost": money(value.estimated_cost),
        "unpriced_calls": value.unpriced_calls,
        "paused_at": _second(value.paused_at),
        "waits_until": _second(value.waits_until),
        "max_cost": money(value.max_cost),
        "saved_calls": value.saved_calls,
        "cache_ttl": value.cache_ttl,
        "invalid_lines": 0 if value.errors is None else value.errors.total,
    }


def row(value: BatchRow) -> dict[str, Any]:
    return {**_fields(value), "cost": money(value.cost)}


def batch_event(position: int, value: BatchRow | Batch) -> bytes:
    """A row with its place in the order in which rows came; or how far the batch is, which is its last word
    when it is over."""
    if isinstance(value, BatchRow):
        return b"id: %d\nevent: row\ndata: %s\n\n" % (position, one_line(_encode(row(value))))
    name = b"done" if value.state in BATCH_OVER else b"progress"
    return b"event: %s\ndata: %s\n\n" % (name, one_line(_encode(batch(value))))


def usage(values: Sequence[UsageRow]) -> dict[str, Any]:
    """Only the fields that rows are grouped by stand in them, beside the sums."""
    data = []
    for row in values:
        known = {name: value for name, value in _fields(row).items() if value is not None}
        data.append({**known, "cost": money(row.cost), "estimated_cost": money(row.estimated_cost)})
    return {
        "object": "list",
        "data": data,
        "total_cost": money(sum((row.cost for row in values), Decimal(0))),
    }


def ledger(page: LedgerPage) -> dict[str, Any]:
    data = [{**_fields(row), "cost": money(row.cost)} for row in page.found]
    cursor = None if page.next is None else "{}:{}".format(*page.next)
    return {"object": "list", "data": data, "has_more": cursor is not None, "next": cursor}


def rows(values: Iterable[BatchRow]) -> Response:
    """One JSON object a line."""
    lines = [_encode(row(value)) + b"\n" for value in values]
    return Response(b"".join(lines), media_type=NDJSON)


def money(amount: Decimal | None) -> str | None:
    """Without an exponent; None where a price is not known."""
    return None if amount is None else f"{amount:f}"


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        **_fields(usage),
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _second(time: float | None) -> int | None:
    return None if time is None else int(time)
