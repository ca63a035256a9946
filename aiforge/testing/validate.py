"""The rules that providers have for message lists, checked strictly.

OpenAI refuses a tool result without its call and a call without all its results right behind it;
Anthropic also wants user and assistant to take turns. A history that was cut, merged or repaired
breaks these rules first, so property tests and `FakeProvider(strict=True)` check every list with
`check_messages`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

Profile = Literal["openai", "anthropic"]

_ROLES: Final = ("system", "developer", "user", "assistant", "tool")
_KEYS: Final = {
    "assistant": {"role", "content", "name", "tool_calls", "refusal", "audio"},
    "tool": {"role", "content", "tool_call_id"},
}
_OTHER_KEYS: Final = {"role", "content", "name"}
_PARTS: Final = {
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
}
_TEXT_ONLY: Final = {"text"}
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class MessageListError(ValueError):
    """A message list breaks a rule; `index` is the message's place, None when it is the whole list."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message if index is None else f"messages[{index}]: {message}")
        self.index = index


def check_messages(messages: Sequence[Mapping[str, Any]], profile: Profile = "openai") -> None:
    """Raise MessageListError at the first broken rule.

    Both profiles: known roles and fields only; no empty content (an assistant's may be null beside tool
    calls, a tool's result may be ""); the first message after the instructions is the user's; the results
    of an assistant's tool calls follow it at once, each exactly once, before anything else; tool calls
    have unique ids, a valid name and arguments as text.

    `anthropic`, for lists that will be converted to its form: instructions stand at the beginning only,
    there is a user message, user (with tool results) and assistant take turns, arguments are a JSON
    object, and a closing assistant message does not end in white space.
    """
    if not messages:
        raise MessageListError("the list is empty")
    for index, message in enumerate(messages):
        _check_message(index, message, profile)
    _check_beginning(messages)
    _check_results(messages)
    if profile == "anthropic":
        _check_turns(messages)


def _check_message(index: int, message: Mapping[str, Any], profile: Profile) -> None:
    if not isinstance(message, Mapping):
        raise MessageListError(f"is {type(message).__name__}, not an object", index)
    role = message.get("role")
    if role not in _ROLES:
        raise MessageListError(f"role {role!r} is none of {', '.join(_ROLES)}", index)
    unknown = sorted(message.keys() - _KEYS.get(role, _OTHER_KEYS))
    if unknown:
        raise MessageListError(f"a message of role {role} has no field {unknown[0]!r}", index)
    if "tool_calls" in message:
        _check_calls(index, message["tool_calls"], profile)
    if role == "tool" and not (isinstance(message.get("tool_call_id"), str) and message["tool_call_id"]):
        raise MessageListError("a tool result needs a tool_call_id", index)
    content = message.get("content")
    if content is None and role == "assistant" and (message.get("tool_calls") or message.get("refusal")):
        return
    _check_content(index, role, content, has_calls="tool_calls" in message)


def _check_content(index: int, role: str, content: object, *, has_calls: bool) -> None:
    if isinstance(content, str):
        if not content and role != "tool" and not has_calls:
            raise MessageListError(f"the content of role {role} is empty", index)
        return
    if not isinstance(content, list):
        raise MessageListError(
            f"content must be text or a list of parts, not {type(content).__name__}", index
        )
    if not content:
        raise MessageListError("content has no parts", index)
    allowed = _PARTS.get(role, _TEXT_ONLY)
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in allowed:
            raise MessageListError(f"a message of role {role} has no parts of type {kind!r}", index)
        if kind in ("text", "refusal") and not (isinstance(part.get(kind), str) and part[kind]):
            raise MessageListError(f"a part of type {kind} is empty", index)


def _check_calls(index: int, calls: object, profile: Profile) -> None:
    if not isinstance(calls, list) or not calls:
        raise MessageListError("tool_calls must be a list with at least one call", index)
    seen: set[str] = set()
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type") != "function":
            raise MessageListError('a tool call needs type "function" and a function', index)
        if not isinstance(call.get("id"), str) or not call["id"]:
            raise MessageListError("a tool call needs an id", index)
        if call["id"] in seen:
            raise MessageListError(f"two tool calls have the id {call['id']!r}", index)
        seen.add(call["id"])
        if not isinstance(function.get("name"), str) or not _TOOL_NAME.fullmatch(function["name"]):
            raise MessageListError(f"{function.get('name')!r} is not a tool's name", index)
        _check_arguments(index, call["id"], function.get("arguments"), profile)


def _check_arguments(index: int, call_id: str, arguments: object, profile: Profile) -> None:
    if not isinstance(arguments, str):
        raise MessageListError(f"the arguments of call {call_id!r} must be text", index)
    if profile == "anthropic":
        try:
            msgspec.json.decode(arguments, type=dict[str, Any])
        except msgspec.DecodeError:
            raise MessageListError(f"the arguments of call {call_id!r} are no JSON object", index) from None


def _check_beginning(messages: Sequence[Mapping[str, Any]]) -> None:
    for index, message in enumerate(messages):
        if message["role"] in ("assistant", "tool"):
            raise MessageListError(f"the first message is of role {message['role']}, not user", index)
        if message["role"] == "user":
            return


def _check_results(messages: Sequence[Mapping[str, Any]]) -> None:
    waiting: dict[str, int] = {}
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            if call_id not in waiting:
                raise MessageListError(
                    f"the result {call_id!r} answers no call of the message before it", index
                )
            del waiting[call_id]
            continue
        _check_none_waiting(waiting, "before another message")
        if message["role"] == "assistant":
            waiting = {call["id"]: index for call in message.get("tool_calls") or ()}
    _check_none_waiting(waiting, "before the end of the list")


def _check_none_waiting(waiting: Mapping[str, int], where: str) -> None:
    for call_id, index in waiting.items():
        raise MessageListError(f"the call {call_id!r} has no result {where}", index)


def _check_turns(messages: Sequence[Mapping[str, Any]]) -> None:
    """Tool results are the beginning of a user's turn that a user message may go on with."""
    last = "system"
    for index, message in enumerate(messages):
        role = message["role"]
        if role in ("system", "developer"):
            if last != "system":
                raise MessageListError("instructions stand at the beginning only", index)
            continue
        if role in ("user", "assistant") and role == last:
            raise MessageListError(f"two messages of role {role} in a row", index)
        last = role
    if last == "system":
        raise MessageListError("there is no user message")
    content = messages[-1].get("content")
    if last == "assistant" and isinstance(content, str) and content != content.rstrip():
        raise MessageListError("the closing assistant message ends in white space", len(messages) - 1)
