"""Lines of a file that continue a conversation: what of a request a turn can be.

A conversation has its messages already, so such a line brings one user message, and instructions before it at
most; what a turn has no place for is refused by name.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from aiforge.core.names import CONVERSATION_WORDS
from worker.contract.batch.line_schemas import Endpoint, Wrong
from worker.contract.checks import check_item, check_message
from worker.contract.errors import InvalidInput
from worker.contract.ids import is_conversation_id
from worker.contract.schemas import BatchItem

_SYSTEM: Final = ("system", "developer")
_LIMITS: Final = {
    "/v1/chat/completions": ("max_completion_tokens", "max_tokens"),
    "/v1/responses": ("max_output_tokens",),
}
_ASKED: Final = {"/v1/chat/completions": ("messages",), "/v1/responses": ("input", "instructions")}
_COMMON: Final = ("model", "temperature", "metadata", "stream")
_NO_TOOLS: Final[frozenset[str]] = frozenset()


def turn_item(endpoint: Endpoint, own: str, conversation: Any, body: bytes) -> BatchItem:
    """The item that a line means; raises Wrong naming what a turn of a conversation cannot be."""
    if not isinstance(conversation, str) or not is_conversation_id(conversation):
        raise Wrong("invalid_value", f"conversation must be {CONVERSATION_WORDS}", "conversation")
    try:
        decoded: dict[str, Any] = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Wrong("invalid_value", f"body: {error}", "body") from None
    given = {name: value for name, value in decoded.items() if value is not None}
    for name in given:
        if name not in (*_COMMON, *_LIMITS[endpoint], *_ASKED[endpoint]):
            raise Wrong(
                "unsupported_parameter",
                f"body.{name[:64]} is nothing that a turn of a conversation has",
                f"body.{name[:64]}",
            )
    instructions, message, where = (_of_messages if endpoint == "/v1/chat/completions" else _of_input)(given)
    limited = next((name for name in _LIMITS[endpoint] if name in given), "")
    fields = {
        "id": own, "conversation": conversation, "message": message, "system_prompt": instructions,
        "model": given["model"], "temperature": given.get("temperature"), "max_tokens": given.get(limited),
        "metadata": given.get("metadata"),
    }  # fmt: skip
    try:
        item = msgspec.convert(fields, BatchItem)
        check_message(item.message, where)
        check_item(item, "body.", _NO_TOOLS)
    except msgspec.ValidationError as error:
        what, _, name = str(error).partition(" - at `$.")
        named = {"message": where, "max_tokens": f"body.{limited}"}
        name = name.rstrip("`").removesuffix("[...]")
        param = named.get(name, f"body.{name}")
        raise Wrong("invalid_value", f"{param}: {what}", param) from None
    except InvalidInput as error:
        place = f"body.{limited}" if error.param == "body.max_tokens" else error.param
        raise Wrong("invalid_value", str(error), place) from None
    return item


def _of_messages(body: dict[str, Any]) -> tuple[Any, Any, str]:
    """Instructions, the message, and where that stands."""
    messages = body["messages"]
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    before = len(messages) - 1
    if before > 1 or roles[-1] != "user" or (before and roles[0] not in _SYSTEM):
        raise _one_message("body.messages")
    instructions = messages[0].get("content") if before else None
    if before and not isinstance(instructions, str):
        raise Wrong("invalid_value", "body.messages[0].content must be a text", "body.messages[0].content")
    return instructions, messages[-1].get("content"), f"body.messages[{before}].content"


def _of_input(body: dict[str, Any]) -> tuple[Any, Any, str]:
    instructions, asked = body.get("instructions"), body["input"]
    if instructions is not None and not isinstance(instructions, str):
        raise Wrong("invalid_value", "body.instructions must be a text", "body.instructions")
    if isinstance(asked, str):
        return instructions, asked, "body.input"
    if len(asked) != 1 or not isinstance(asked[0], dict) or asked[0].get("role") != "user":
        raise _one_message("body.input")
    content = asked[0].get("content")
    if isinstance(content, list):
        content = [
            {**part, "type": "text"} if isinstance(part, dict) and part.get("type") == "input_text" else part
            for part in content
        ]
    return instructions, content, "body.input[0].content"


def _one_message(param: str) -> Wrong:
    return Wrong(
        "invalid_value",
        f"{param} of a line that continues a conversation is one user message, behind one of instructions at"
        " most",
        param,
    )
