"""When two requests are the same: by what they mean, not by how they are written."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from aiforge.core.line_bodies import LABELS
from worker.contract.schemas import BatchItem, BatchRequest

_EXACT: Final = 2.0**53
"""Up to here a float that has no fraction is one whole number and no other."""
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def digest_of(*decides: Any) -> str:
    """The digest of all that decides an answer, given as JSON values: keys in any order, 0 and 0.0 alike."""
    return hashlib.blake2b(_encode(_plain(decides)), digest_size=20).hexdigest()


def line_question(body: dict[str, Any]) -> dict[str, Any]:
    """What of a line's body decides its answer.

    Labels do not, unless the provider is told to `store` the answer under them.
    """
    labels = frozenset[str]() if body.get("store") else LABELS | {"store"}
    return {name: value for name, value in body.items() if value is not None and name not in labels}


def item_question(item: BatchItem, batch: BatchRequest) -> dict[str, Any]:
    """What decides the answer to an item, with what the batch says for all; metadata reaches tools alone."""
    tools = (batch.tools if item.tools is None else item.tools) or []
    return {
        "message": item.message,
        "system_prompt": batch.system_prompt if item.system_prompt is None else item.system_prompt,
        "model": batch.model if item.model is None else item.model,
        "temperature": batch.temperature if item.temperature is None else item.temperature,
        "max_tokens": batch.max_tokens if item.max_tokens is None else item.max_tokens,
        "tools": tools,
        "metadata": (item.metadata or batch.metadata or {}) if tools else {},
    }


def _plain(value: Any) -> Any:
    match value:
        case float() if value.is_integer() and abs(value) < _EXACT:
            return int(value)
        case dict():
            return {name: _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case _:
            return value
