"""A whole conversation as one document: what it holds, and what has to be right in one that comes in."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NoReturn

import msgspec

from worker.contract import records
from worker.contract.errors import InvalidInput
from worker.contract.ids import is_turn_id
from worker.contract.schemas import ConversationSettings, StoredMessage, Summary

EXPORT_VERSION: Final = 1
MAX_MESSAGES: Final = 100_000
MAX_STORED_BYTES: Final = 4 * 1024 * 1024
"""Of one message as it is stored: an answer or a tool's result may be longer than a question."""

CheckContent = Callable[[str | list[dict[str, Any]], str], None]


class ConversationExport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation with its settings and its messages in order; `created_at` in Unix seconds.

    It has what the latest version has. Turns and older versions are not part of it: a message's `turn_id`
    says who wrote it and leads nowhere after an import, which begins with one version of all messages.
    """

    version: int = EXPORT_VERSION
    conversation_id: str
    created_at: float
    settings: ConversationSettings
    messages: Sequence[StoredMessage]
    summary: Summary | None = None


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    """A tool call in OpenAI's form; what providers add to it is kept."""

    id: str
    function: _Function
    type: Literal["function"] = "function"


def check_head(document: ConversationExport) -> None:
    """Raises InvalidInput unless this format is known and the rest can be."""
    if document.version != EXPORT_VERSION:
        raise InvalidInput(f"version must be {EXPORT_VERSION}, not {document.version}", param="version")
    if not 0 < document.created_at < time.time() + 60:
        raise InvalidInput("created_at must be a time in the past, in Unix seconds", param="created_at")
    if len(document.messages) > MAX_MESSAGES:
        raise InvalidInput(f"a conversation has at most {MAX_MESSAGES} messages", param="messages")
    if document.summary is not None:
        _check_summary(document.summary, len(document.messages))


def _check_summary(summary: Summary, messages: int) -> None:
    if not 1 <= summary.messages <= messages:
        _refuse("summary.messages", f"must be from 1 to the number of messages, {messages}")
    if not summary.text.strip():
        _refuse("summary.text", "is empty")
    try:
        too_long = len(summary.text.encode()) > MAX_STORED_BYTES
    except UnicodeEncodeError:
        _refuse("summary.text", "holds a lone surrogate, which is no character")
    if too_long:
        _refuse("summary.text", f"is longer than {MAX_STORED_BYTES} bytes")


def packed(messages: Sequence[StoredMessage], check: CheckContent) -> list[bytes]:
    """Messages as memory keeps them; raises InvalidInput naming the one that is wrong.

    `check` is what a user's message has to pass. Each tool result belongs to a call of the answer before it,
    and each call has one.
    """
    waiting: set[str] = set()
    rows = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                _refuse(f"{where}.tool_call_id", "belongs to no call that waits for its result")
            waiting.remove(message.tool_call_id)
        elif waiting:
            _refuse(where, f"stands before the result of call {min(waiting)!r}")
        _check_fields(message, where)
        if message.role == "user":
            check("" if message.content is None else message.content, f"{where}.content")
        waiting |= _calls(message, where)
        rows.append(_packed(message, where))
    if waiting:
        _refuse("messages", f"call {min(waiting)!r} has no result")
    return rows


def _check_fields(message: StoredMessage, where: str) -> None:
    assistant = message.role == "assistant"
    if message.tool_calls is not None and not assistant:
        _refuse(f"{where}.tool_calls", "only an assistant calls tools")
    if message.tool_call_id is not None and message.role != "tool":
        _refuse(f"{where}.tool_call_id", "only a tool's result has one")
    if message.stopped and not assistant:
        _refuse(f"{where}.stopped", "only an answer can be stopped")
    if message.content is None and not message.tool_calls:
        _refuse(f"{where}.content", "is missing")
    if message.turn_id and not is_turn_id(message.turn_id):
        _refuse(f"{where}.turn_id", "is no turn's id")


def _calls(message: StoredMessage, where: str) -> set[str]:
    """Ids of the calls that a message makes."""
    try:
        calls = msgspec.convert(message.tool_calls or [], list[_Call])
    except msgspec.ValidationError as error:
        _refuse(f"{where}.tool_calls", str(error))
    ids = {call.id for call in calls}
    if len(ids) < len(calls):
        _refuse(f"{where}.tool_calls", "an id appears twice")
    return ids


def _packed(message: StoredMessage, where: str) -> bytes:
    try:
        row = records.encode(message)
    except RecursionError:
        _refuse(where, "is nested too deeply")
    except UnicodeEncodeError:
        _refuse(where, "holds a lone surrogate, which is no character")
    if len(row) > MAX_STORED_BYTES:
        _refuse(where, f"is longer than {MAX_STORED_BYTES} bytes")
    return row


def _refuse(param: str, why: str) -> NoReturn:
    raise InvalidInput(f"{param}: {why}", param=param)
