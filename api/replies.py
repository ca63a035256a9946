"""Replies as JSON: contract structs in, bytes out. Money leaves as plain decimal strings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
from starlette.responses import Response

from aiforge.core.types import Usage
from worker.contract.schemas import Batch, BatchRow, BatchState, StoredMessage, Turn

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
    return fields


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
