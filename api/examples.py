"""Examples of what `api/schemas.py` describes, where they do not stand with the model itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, Final

from pydantic import BaseModel

from api import schemas

_CONVERSATION: Final = "user-42"
_TURN_IDS: Final = ("171f0a93c2d4e5b6a7f809", "17b2c4d6e8f0a1b3c5d7e9")


def _own(model: type[BaseModel]) -> list[dict[str, Any]]:
    """What a model itself shows."""
    extra: Any = model.model_config.get("json_schema_extra") or {}
    return list(extra.get("examples", ()))


_BATCH: Final[dict[str, Any]] = {
    "id": "batch_171f0a93c2d4e5b6a7f809",
    "object": "batch",
    "endpoint": "/v1/turns",
    "errors": None,
    "input_file_id": "inline",
    "output_file_id": None,
    "error_file_id": None,
    "completion_window": "24h",
    "status": "completed",
    "created_at": 1767225600,
    "in_progress_at": 1767225601,
    "expires_at": None,
    "finalizing_at": None,
    "completed_at": 1767225642,
    "failed_at": None,
    "expired_at": None,
    "cancelling_at": None,
    "cancelled_at": None,
    "request_counts": {"total": 200, "completed": 199, "failed": 1},
    "model": "gpt-4o-mini",
    "metadata": {"run": "nightly"},
    "usage": {
        "input_tokens": 82400,
        "output_tokens": 11400,
        "cached_tokens": 0,
        "cache_write_tokens": 0,
        "reasoning_tokens": 0,
        "estimated": False,
        "input_audio_tokens": 0,
        "output_audio_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 93800,
    },
    "cost": "0.0192",
    "estimated_cost": "0",
    "unpriced_calls": 0,
    "paused_at": None,
    "waits_until": None,
    "max_cost": "5",
    "saved_calls": 0,
    "cache_ttl": 86400,
    "invalid_lines": 0,
}
_LINE_ERROR: Final[dict[str, Any]] = {
    "code": "duplicate_custom_id",
    "message": "custom_id 'faq-1' stands in line 1, too",
    "line": 3,
    "param": "custom_id",
}
_ROW: Final[dict[str, Any]] = {
    "index": 0,
    "id": "faq-1",
    "status": "ok",
    "answer": "Open Settings, choose Security and press Reset password.",
    "error": None,
    "model": "gpt-4o-mini",
    "usage": _own(schemas.Usage)[0],
    "cost": "0.000096",
    "latency_ms": 812.4,
    "attempts": 1,
    "response": None,
    "deduplicated": None,
    "cached": False,
}
_FAILED: Final[dict[str, Any]] = {
    **_ROW,
    **dict.fromkeys(("answer", "usage", "cost")),
    "index": 1,
    "id": None,
    "status": "error",
    "error": {"code": "rate_limited", "message": "openai, gpt-4o-mini: too many requests", "retryable": True},
}
_LISTED: Final[dict[str, Any]] = {**_own(schemas.Conversation)[0], "last_turn_at": 1767225601.934}

_FURTHER: Final[Mapping[str, list[dict[str, Any]]]] = {
    "Alive": [{"status": "alive"}],
    "Ready": [{"status": "ready"}],
    "Batch": [_BATCH],
    "Batches": [
        {
            "object": "list",
            "data": [_BATCH],
            "first_id": _BATCH["id"],
            "last_id": _BATCH["id"],
            "has_more": False,
        }
    ],
    "BatchDeleted": [{"id": _BATCH["id"], "object": "batch", "deleted": True}],
    "CacheErased": [{"object": "cache", "deleted": True, "answers": 199}],
    "LineError": [_LINE_ERROR],
    "LineErrors": [{"object": "list", "data": [_LINE_ERROR]}],
    "LineResponse": [{"status_code": 200, "request_id": "req_1", "body": {"object": "chat.completion"}}],
    "OutputExpiry": [{"anchor": "created_at", "seconds": 86400}],
    "BatchRow": [_ROW, _FAILED],
    "Turns": [{"object": "list", "data": _own(schemas.Turn)[:1], "has_more": False}],
    "ListedConversation": [_LISTED],
    "Conversations": [
        {
            "object": "list",
            "data": [_LISTED],
            "has_more": True,
            "next": f"1767225601934:{_CONVERSATION}",
        }
    ],
    "Queue": [{"active": _TURN_IDS[0], "waiting": [_TURN_IDS[1]]}],
    "QueueBody": [{"expected": list(_TURN_IDS), "turns": list(reversed(_TURN_IDS))}],
    "Erasure": [
        {
            "conversation_id": _CONVERSATION,
            "messages": 4,
            "turns": 2,
            "stopped": 0,
            "schedules": 1,
            "items": 1,
            "files": [],
        }
    ],
}

NAMED: Final[Mapping[str, dict[str, Any]]] = {
    "queued": {
        **_own(schemas.Turn)[0],
        "state": "queued",
        **dict.fromkeys(("answer", "usage", "cost", "estimated_cost", "model", "finished_at")),
        "attempts": 0,
    }
}
"""What a reply shows in place of its model's example; a turn looks like this right after it was posted."""


def examples(modules: Iterable[ModuleType]) -> dict[str, list[dict[str, Any]]]:
    """Of all models that these modules describe, by the model's name."""
    models = {
        name: model
        for module in modules
        for name, model in vars(module).items()
        if isinstance(model, type) and issubclass(model, BaseModel)
    }
    found = {name: _FURTHER.get(name) or _own(model) for name, model in models.items()}
    return {name: shown for name, shown in found.items() if shown}
