"""Replies as JSON: contract structs in, bytes out. Money leaves as plain decimal strings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
from starlette.responses import Response

from aiforge.core.types import Usage
from worker.contract.schemas import Batch, BatchRow, BatchState, Conversation, StoredMessage, Turn
from worker.contract.usage import UsageRow

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ENDPOINT: Final = "/v1/turns"
"""What a batch's items are, in the words of OpenAI's batch object."""

INLINE: Final = "inline"
"""Stands where OpenAI's object names a file: the items came in the request."""

_TURN_FIELDS: Final = tuple(name for name in Turn.__struct_fields__ if name != "replayed")
_encode: Final = msgspec.json.Encoder().encode


def reply(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encode(value), status_code=status, headers=headers, media_type=JSON)


def turn(value: Turn) -> dict[str, Any]:
    fields = {name: getattr(value, name) for name in _TURN_FIELDS}
    fields["cost"] = money(value.cost)
    if value.question is not None:
        question = _fields(value.question)
        del question["call_id"]
        fields["question"] = question
    return fields


def turns(values: Sequence[Turn]) -> dict[str, Any]:
    return {"object": "list", "data": [turn(value) for value in values], "has_more": False}


def conversations(values: Sequence[tuple[int, Conversation]], *, has_more: bool) -> dict[str, Any]:
    data = [{**_fields(value), "last_turn_at": when / 1000} for when, value in values]
    cursor = f"{values[-1][0]}:{values[-1][1].conversation_id}" if has_more else None
    return {"object": "list", "data": data, "has_more": has_more, "next": cursor}


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
        "endpoint": ENDPOINT,
        "errors": None,
        "input_file_id": INLINE,
        "output_file_id": None,
        "error_file_id": None,
        "completion_window": "24h",
        "status": state,
        "created_at": int(value.created_at),
        "in_progress_at": _second(value.started_at),
        "expires_at": None,
        "finalizing_at": None,
        "completed_at": finished if state is BatchState.COMPLETED else None,
        "failed_at": None,
        "expired_at": None,
        "cancelling_at": _second(value.cancelled_at),
        "cancelled_at": finished if state is BatchState.CANCELLED else None,
        "request_counts": {"total": value.total, "completed": value.completed, "failed": value.failed},
        "model": value.model,
        "metadata": value.metadata,
        "usage": _usage(value.usage),
        "cost": money(value.cost),
        "unpriced_calls": value.unpriced_calls,
    }


def usage(values: Sequence[UsageRow]) -> dict[str, Any]:
    """Only the fields that rows are grouped by stand in them, beside the sums."""
    data = [
        {name: value for name, value in _fields(row).items() if value is not None} | {"cost": money(row.cost)}
        for row in values
    ]
    return {
        "object": "list",
        "data": data,
        "total_cost": money(sum((row.cost for row in values), Decimal(0))),
    }


def rows(values: Iterable[BatchRow]) -> Response:
    """One JSON object a line."""
    lines = [_encode({**_fields(row), "cost": money(row.cost)}) + b"\n" for row in values]
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
