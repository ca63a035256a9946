"""Every shape in which providers are known to stream tool calls.

One client has to read them all, so the same calls can be sent in each of them:

    for shape in TOOL_SHAPES:
        Reply(tool_calls=[…], tool_shape=shape)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never, get_args

from aiforge.testing.script import Delta, ToolCall, ToolShape

TOOL_SHAPES: tuple[ToolShape, ...] = get_args(ToolShape)


def tool_deltas(calls: Sequence[ToolCall], shape: ToolShape = "openai") -> list[Delta]:
    """The deltas that carry `calls`.

    openai           index, id and name first, then the arguments in fragments with the index alone
    whole            each call whole in a chunk of its own
    together         all calls whole in one chunk
    interleaved      the fragments of all calls in turn, ids only on the first
    same_index       whole calls that all say index 0 and differ by id
    no_index         whole calls without an index
    repeated_ids     fragments that repeat id and name each time
    null_arguments   as openai, but the first fragment's arguments are null
    empty_arguments  each call with its arguments left out as ""; for calls without arguments
    """
    named = [(n, call.id or f"call_{n + 1}", call) for n, call in enumerate(calls)]
    match shape:
        case "openai":
            parts = [part for item in named for part in _fragments(*item, first="")]
        case "null_arguments":
            parts = [part for item in named for part in _fragments(*item, first=None)]
        case "repeated_ids":
            parts = [part for item in named for part in _repeating(*item)]
        case "interleaved":
            parts = _in_turn([_fragments(*item, first="") for item in named])
        case "whole" | "together":
            parts = [_whole(*item) for item in named]
        case "same_index":
            parts = [_whole(0, id_, call) for _, id_, call in named]
        case "no_index":
            parts = [_whole(None, id_, call) for _, id_, call in named]
        case "empty_arguments":
            parts = [_part(n, id_, call.name, "") for n, id_, call in named]
        case _:
            assert_never(shape)
    if shape == "together" and parts:
        return [Delta({"tool_calls": parts})]
    return [Delta({"tool_calls": [part]}) for part in parts]


def merge(deltas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tool calls of a message whose stream these `delta` objects would be.

    A fragment belongs to the call with its id, else to the one that last used its index, else to the last.
    """
    calls: list[dict[str, Any]] = []
    by_index: dict[int, dict[str, Any]] = {}
    for part in (part for delta in deltas for part in delta.get("tool_calls") or ()):
        known = [call for call in calls if part.get("id") and call["id"] == part["id"]]
        if known:
            call = known[0]
        elif part.get("id") or not calls:
            call = {"id": part.get("id"), "type": "function", "function": {"name": "", "arguments": ""}}
            calls.append(call)
        else:
            call = by_index.get(part.get("index", -1), calls[-1])
        if part.get("index") is not None:
            by_index[part["index"]] = call
        function = part.get("function") or {}
        call["function"]["name"] = call["function"]["name"] or function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
    return calls


def _part(index: int | None, id_: str | None, name: str | None, arguments: str | None) -> dict[str, Any]:
    part: dict[str, Any] = {} if index is None else {"index": index}
    if id_ is not None:
        part |= {"id": id_, "type": "function"}
    part["function"] = {"arguments": arguments} if name is None else {"name": name, "arguments": arguments}
    return part


def _whole(index: int | None, id_: str, call: ToolCall) -> dict[str, Any]:
    return _part(index, id_, call.name, call.arguments_text())


def _fragments(index: int, id_: str, call: ToolCall, *, first: str | None) -> list[dict[str, Any]]:
    return [_part(index, id_, call.name, first)] + [
        _part(index, None, None, piece) for piece in _pieces(call.arguments_text())
    ]


def _repeating(index: int, id_: str, call: ToolCall) -> list[dict[str, Any]]:
    return [_part(index, id_, call.name, piece) for piece in _pieces(call.arguments_text())]


def _pieces(arguments: str, size: int = 5) -> list[str]:
    return [arguments[at : at + size] for at in range(0, len(arguments), size)] or [""]


def _in_turn(queues: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    rounds = max((len(queue) for queue in queues), default=0)
    return [queue[n] for n in range(rounds) for queue in queues if n < len(queue)]
