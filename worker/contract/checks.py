"""What a caller may ask for: every field is looked at before anything is stored."""

from __future__ import annotations

import re
import time
from typing import Any, Final

import msgspec

from aiforge.core.content import ContentError, check_content
from aiforge.core.names import CONVERSATION_WORDS
from aiforge.core.parameters import ParameterError, check_parameters
from worker.contract import records
from worker.contract.batch.files import LONGEST_LIFE, SHORTEST_LIFE
from worker.contract.calls.budget_limits import limit
from worker.contract.errors import InvalidInput
from worker.contract.ids import is_conversation_id
from worker.contract.schemas import (
    MAX_BATCH_ITEMS,
    BatchItem,
    BatchRequest,
    ConversationSettings,
    TurnRequest,
)

MAX_KEY_LENGTH: Final = 255
LONGEST_WINDOW: Final = 30 * 86_400
_WINDOW: Final = re.compile(r"([0-9]{1,7})([smhd])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MOST_METADATA: Final = 16
LONGEST_NAME: Final = 64
LONGEST_NOTE: Final = 512
"""What OpenAI lets a batch's metadata be."""
LONGEST_CACHE: Final = 30 * 86_400
LATEST_START: Final = 366 * 86_400
LONGEST_TTL: Final = 10 * 366 * 86_400
"""Seconds."""


def check_conversation_id(conversation_id: str) -> None:
    """Raises InvalidInput unless the id can be a conversation's."""
    if not is_conversation_id(conversation_id):
        raise InvalidInput(f"conversation_id must be {CONVERSATION_WORDS}", param="conversation_id")


def check_key(key: str) -> None:
    """Raises InvalidInput unless this can be an idempotency key."""
    if not 1 <= len(key) <= MAX_KEY_LENGTH or not key.isprintable():
        raise InvalidInput(
            f"idempotency_key must be 1 to {MAX_KEY_LENGTH} printable characters", param="idempotency_key"
        )


def check_turn(request: TurnRequest, tools: frozenset[str]) -> None:
    """Raises InvalidInput naming the field that is wrong, whenever it is asked."""
    _check_types(request)
    _check_request(request.message, request, "message", tools)


def check_run_after(run_after: float | None) -> None:
    """Raises InvalidInput unless a turn that is posted now can begin then."""
    if run_after is not None and not time.time() - 60 < run_after < time.time() + LATEST_START:
        raise InvalidInput(
            "run_after must be a time in the next 366 days, in Unix seconds", param="run_after"
        )


def check_conversation(settings: ConversationSettings, tools: frozenset[str]) -> None:
    """Raises InvalidInput naming the field that is wrong."""
    _check_types(settings)
    if not 1 <= settings.memory_k <= 1_000:
        raise InvalidInput("memory_k must be from 1 to 1000", param="memory_k")
    if settings.ttl is not None and not 1 <= settings.ttl <= LONGEST_TTL:
        raise InvalidInput(f"ttl must be from 1 to {LONGEST_TTL} seconds", param="ttl")
    _check_parameters(settings, "", tools)


def _check_types(asked: msgspec.Struct) -> None:
    """What a worker could not read back would be begun again and again, and block its conversation."""
    try:
        msgspec.json.decode(records.encode(asked), type=type(asked))
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        param = where.strip("`").removeprefix("$.")
        raise InvalidInput(f"{param}: {what}", param=param) from None
    except (UnicodeEncodeError, RecursionError, OverflowError):
        return  # which is for those to name who look at texts, depth and numbers


def check_settings(settings: ConversationSettings, tools: frozenset[str]) -> None:
    """As `check_conversation`, of what stands under `settings` in what a caller sends."""
    try:
        check_conversation(settings, tools)
    except InvalidInput as error:
        raise InvalidInput(f"settings: {error}", param=f"settings.{error.param}") from None


def check_batch(request: BatchRequest, tools: frozenset[str]) -> None:
    """Raises InvalidInput naming the field or item that is wrong."""
    if request.completion_window is not None:
        window_seconds(request.completion_window)
    _check_metadata(request.metadata)
    if request.max_cost is not None:
        try:
            limit("max_usd", request.max_cost)
        except ValueError as error:
            raise InvalidInput(f"max_cost{str(error).removeprefix('max_usd')}", param="max_cost") from None
    if isinstance(request.cache_ttl, int) and not 1 <= request.cache_ttl <= LONGEST_CACHE:
        raise InvalidInput(f"cache_ttl must be from 1 to {LONGEST_CACHE} seconds", param="cache_ttl")
    if request.input_file_id is not None:
        _check_file_batch(request)
        return
    for name in ("endpoint", "output_expires_after"):
        if getattr(request, name) is not None:
            raise InvalidInput(f"{name} goes with input_file_id", param=name)
    if not 1 <= len(request.items) <= MAX_BATCH_ITEMS:
        raise InvalidInput(
            f"a batch has 1 to {MAX_BATCH_ITEMS} items, or an input_file_id instead", param="items"
        )
    _check_parameters(request, "", tools)
    ids: set[str] = set()
    for index, item in enumerate(request.items):
        check_item(item, f"items[{index}].", tools)
        if item.conversation is not None:
            _check_turn_item(request, item.conversation, f"items[{index}].conversation")
        if item.id is not None:
            if item.id in ids:
                raise InvalidInput(f"the id {item.id!r} appears twice", param=f"items[{index}].id")
            ids.add(item.id)


def check_item(item: BatchItem, prefix: str, tools: frozenset[str]) -> None:
    """Raises InvalidInput naming the field, behind `prefix`, that is wrong."""
    _check_request(item.message, item, f"{prefix}message", tools)


def _check_turn_item(request: BatchRequest, conversation: str, param: str) -> None:
    if not is_conversation_id(conversation):
        raise InvalidInput(f"{param} must be {CONVERSATION_WORDS}", param=param)
    if request.max_cost is not None:
        raise InvalidInput(
            f"{param}: turns are held by the budgets of their tenant and conversation, not by max_cost",
            param="max_cost",
        )


def window_seconds(window: str) -> float:
    """A span such as `24h` in seconds; raises InvalidInput."""
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 1 <= seconds <= LONGEST_WINDOW:
        raise InvalidInput(
            "completion_window must be a span of up to 30 days, such as 90s, 45m, 24h or 7d",
            param="completion_window",
        )
    return seconds


def _check_file_batch(request: BatchRequest) -> None:
    if request.items:
        raise InvalidInput("either items or an input_file_id", param="input_file_id")
    for name in ("system_prompt", "model", "temperature", "max_tokens", "tools"):
        if getattr(request, name) is not None:
            raise InvalidInput(f"{name} stands in the lines of the file", param=name)
    for name in ("endpoint", "completion_window"):
        if getattr(request, name) is None:
            raise InvalidInput(f"{name} is required with an input_file_id", param=name)
    expiry = request.output_expires_after
    if expiry is not None and not SHORTEST_LIFE <= expiry.seconds <= LONGEST_LIFE:
        raise InvalidInput(
            f"output_expires_after.seconds must be from {SHORTEST_LIFE} to {LONGEST_LIFE}",
            param="output_expires_after.seconds",
        )


def _check_metadata(metadata: dict[str, str] | None) -> None:
    metadata = metadata or {}
    if len(metadata) > MOST_METADATA:
        raise InvalidInput(f"metadata has at most {MOST_METADATA} keys", param="metadata")
    for name, value in metadata.items():
        if not 1 <= len(name) <= LONGEST_NAME or len(value) > LONGEST_NOTE:
            raise InvalidInput(
                f"metadata: a key has 1 to {LONGEST_NAME} characters, a value at most {LONGEST_NOTE}",
                param=f"metadata.{name[:LONGEST_NAME]}",
            )
    if metadata.get("on_invalid") not in (None, "skip", "fail"):
        raise InvalidInput("metadata.on_invalid must be skip or fail", param="metadata.on_invalid")


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
    try:
        check_parameters(
            temperature=request.temperature,
            max_tokens=request.max_tokens,
            model=request.model,
            tools=request.tools,
            known_tools=tools,
        )
    except ParameterError as error:
        raise InvalidInput(f"{error.name} {error}", param=f"{prefix}{error.name}") from None
