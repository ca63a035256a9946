"""Replies as JSON: contract structs in, bytes out. Money leaves as plain decimal strings."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from aiforge.core.texts import one_line
from aiforge.core.types import Usage
from worker.contract.batch.client import Deleted
from worker.contract.calls.rows import LedgerPage
from worker.contract.calls.usage import UsageRow
from worker.contract.memory.history import Page
from worker.contract.schemas import BATCH_OVER, Batch, BatchRow, BatchState, Conversation, Turn

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


def made_conversation(value: Conversation) -> Response:
    return reply(value, status=201, headers=made_at(f"/v1/conversations/{value.conversation_id}"))


def made_at(path: str, *, replayed: bool = False) -> dict[str, str]:
    """The headers of a reply that says where the new thing is, or the one that was made before."""
    return {"Location": path} | ({"Idempotent-Replayed": "true"} if replayed else {})


def listed(data: Sequence[object], *, has_more: bool = False) -> dict[str, Any]:
    return {"object": "list", "data": data, "has_more": has_more}


def paged(data: Sequence[object], following: tuple[int, str] | None) -> dict[str, Any]:
    """A list whose next page begins behind a time and an id, which `params.cursor_of` reads."""
    cursor = None if following is None else "{}:{}".format(*following)
    return {**listed(data, has_more=cursor is not None), "next": cursor}


def conversations(page: Page) -> dict[str, Any]:
    return paged([{**_fields(value), "last_turn_at": when / 1000} for when, value in page.found], page.next)


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


def batch_event(position: int, value: BatchRow | Batch | Deleted) -> bytes:
    """A row with its place in the order in which rows came; or how far the batch is, which is its last word
    when it is over or deleted."""
    match value:
        case BatchRow():
            return b"id: %d\nevent: row\ndata: %s\n\n" % (position, one_line(_encode(row(value))))
        case Deleted():
            name, told = b"done", {**batch(value.batch), "deleted": True}
        case _:
            name, told = b"done" if value.state in BATCH_OVER else b"progress", batch(value)
    return b"event: %s\ndata: %s\n\n" % (name, one_line(_encode(told)))


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
    return paged([{**_fields(row), "cost": money(row.cost)} for row in page.found], page.next)


def row_lines(values: Iterable[BatchRow]) -> bytes:
    """One JSON object a line, whatever a reader takes for the end of one."""
    return b"".join(one_line(_encode(row(value))) + b"\n" for value in values)


async def streamed(
    pieces: AsyncIterator[bytes], *, media_type: str, headers: Mapping[str, str] | None = None
) -> Response:
    """A reply that is never held as a whole. What is wrong with its first piece can still be answered."""
    first = await anext(pieces, b"")

    async def whole() -> AsyncIterator[bytes]:
        yield first
        async for piece in pieces:
            yield piece

    return StreamingResponse(whole(), headers=headers, media_type=media_type)


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
