"""What a caller may ask for: every field is looked at before anything is stored."""

from __future__ import annotations

import time
from typing import Any, Final

from aiforge.core.content import ContentError, check_content
from worker.contract.errors import InvalidInput
from worker.contract.keys import is_conversation_id
from worker.contract.schemas import MAX_BATCH_ITEMS, BatchRequest, ConversationSettings, TurnRequest

MOST_TOKENS: Final = 10_000_000
"""More than any model answers with, and little enough to be counted by everybody."""
LATEST_START: Final = 366 * 86_400
LONGEST_TTL: Final = 10 * 366 * 86_400
"""Seconds."""


def check_conversation_id(conversation_id: str) -> None:
    """Raises InvalidInput unless the id can be a conversation's."""
    if not is_conversation_id(conversation_id):
        raise InvalidInput(
            "a conversation id is 1 to 128 characters of A-Z a-z 0-9 . _ - and not only one dot or two",
            param="conversation_id",
        )


def check_turn(request: TurnRequest, tools: frozenset[str]) -> None:
    """Raises InvalidInput naming the field that is wrong."""
    _check_request(request.message, request, "message", tools)
    if (
        request.run_after is not None
        and not time.time() - 60 < request.run_after < time.time() + LATEST_START
    ):
        raise InvalidInput(
            "run_after must be a time in the next 366 days, in Unix seconds", param="run_after"
        )


def check_conversation(settings: ConversationSettings, tools: frozenset[str]) -> None:
    """Raises InvalidInput naming the field that is wrong."""
    if not 1 <= settings.memory_k <= 1_000:
        raise InvalidInput("memory_k must be from 1 to 1000", param="memory_k")
    if settings.ttl is not None and not 1 <= settings.ttl <= LONGEST_TTL:
        raise InvalidInput(f"ttl must be from 1 to {LONGEST_TTL} seconds", param="ttl")
    _check_parameters(settings, "", tools)


def check_batch(request: BatchRequest, tools: frozenset[str]) -> None:
    """Raises InvalidInput naming the field or item that is wrong."""
    if not 1 <= len(request.items) <= MAX_BATCH_ITEMS:
        raise InvalidInput(f"a batch has 1 to {MAX_BATCH_ITEMS} items", param="items")
    _check_parameters(request, "", tools)
    ids: set[str] = set()
    for index, item in enumerate(request.items):
        _check_request(item.message, item, f"items[{index}].message", tools)
        if item.id is not None:
            if item.id in ids:
                raise InvalidInput(f"the id {item.id!r} appears twice", param=f"items[{index}].id")
            ids.add(item.id)


def _check_request(
    message: str | list[dict[str, Any]], request: Any, param: str, tools: frozenset[str]
) -> None:
    check_message(message, param)
    _check_parameters(request, param.removesuffix("message"), tools)


def check_message(message: str | list[dict[str, Any]], param: str) -> None:
    """Raises InvalidInput naming the place in `param` that is wrong."""
    try:
        check_content(message)
    except ContentError as error:
        where = f"{param}{error.where}"
        raise InvalidInput(f"{where} {error}", param=where) from None


def _check_parameters(request: Any, prefix: str, tools: frozenset[str]) -> None:
    if request.temperature is not None and not 0 <= request.temperature <= 2:
        raise InvalidInput("temperature must be from 0 to 2", param=f"{prefix}temperature")
    if request.max_tokens is not None and not 1 <= request.max_tokens <= MOST_TOKENS:
        raise InvalidInput(f"max_tokens must be from 1 to {MOST_TOKENS}", param=f"{prefix}max_tokens")
    if request.model is not None and not request.model.strip():
        raise InvalidInput("model must not be empty", param=f"{prefix}model")
    unknown = set(request.tools or ()) - tools
    if unknown:
        known = ", ".join(sorted(tools))
        raise InvalidInput(f"unknown tool {min(unknown)!r}; known: {known}", param=f"{prefix}tools")
