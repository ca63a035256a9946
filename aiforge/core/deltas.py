"""What one provider call yields, whatever the provider: text, pieces of tool calls, usage, the end.

Every stream of deltas keeps one promise: any number of `TextDelta` and `ToolCallDelta`, then exactly
one `UsageDelta` and, as the last item, one `FinishDelta`. A call that fails after the provider has
reported usage yields that `UsageDelta` before it raises, so that what was paid is never forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from aiforge.core.types import Usage

CALL_ID_HEADER: Final = "x-aiforge-call-id"
"""Names the call to the provider, so that its log and our ledger can be compared."""


class CallParams(msgspec.Struct, frozen=True):
    """How one call is to be answered; None leaves it to the provider."""

    temperature: float | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None


class CallRequest(msgspec.Struct, frozen=True):
    """One provider call that is to be made: messages and tools in OpenAI's form.

    `extra` are further fields of the request, in OpenAI's words.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None
    params: CallParams
    call_id: str
    extra: Mapping[str, Any] = {}


class TextDelta(msgspec.Struct, frozen=True):
    """A piece of the answer, as the provider cut it."""

    text: str


class ToolCallDelta(msgspec.Struct, frozen=True):
    """A piece of a tool call. Providers differ in what they repeat; `assemble` knows."""

    index: int | None
    id: str | None
    name: str | None
    arguments: str


class UsageDelta(msgspec.Struct, frozen=True):
    """The tokens of the whole call."""

    usage: Usage


class FinishDelta(msgspec.Struct, frozen=True):
    """The provider says that the answer is complete: "stop", "length", "tool_calls" or its own word."""

    reason: str


Delta: TypeAlias = TextDelta | ToolCallDelta | UsageDelta | FinishDelta


class AssembledCall(msgspec.Struct, frozen=True):
    """A whole tool call; `arguments` is the JSON text as the model wrote it, "{}" where it wrote none."""

    id: str
    name: str
    arguments: str

    def as_openai(self) -> dict[str, Any]:
        """The entry of an assistant message's `tool_calls`."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer of one call. `model` is the name the provider gave, or the one asked for."""

    text: str
    tool_calls: list[AssembledCall]
    usage: Usage
    finish_reason: str
    model: str


class _Call:
    """One tool call while its pieces arrive."""

    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id: str | None = None
        self.name = ""
        self.arguments: list[str] = []

    def add(self, piece: ToolCallDelta) -> None:
        self.id = self.id or piece.id or None
        if piece.name:
            # A name comes in pieces, or grows, or is repeated whole with every piece.
            grown = piece.name.startswith(self.name)
            self.name = piece.name if grown else self.name + piece.name
        if piece.arguments:
            if piece.arguments.lstrip().startswith("{") and self.is_whole():
                # Said again from the start: a repetition, or an empty object sent ahead.
                self.arguments.clear()
            self.arguments.append(piece.arguments)

    def is_whole(self) -> bool:
        try:
            return isinstance(msgspec.json.decode("".join(self.arguments)), dict)
        except msgspec.DecodeError:
            return False


def assemble(pieces: Iterable[ToolCallDelta]) -> list[AssembledCall]:
    """The calls that the pieces make up, in the order in which they began.

    A piece belongs to the call with its index and id. A new id opens a new call, also under an
    index that is in use. A piece without an id belongs to the latest call of its index, one
    without id and index to the latest call; it opens a new one only if it names a function while
    that call is whole. Ids are made unique, because a tool's result is tied to its call by id
    alone; where the provider gave none they are numbered: `call_0`, `call_1`, …
    """
    calls: list[_Call] = []
    for piece in pieces:
        call = _owner(calls, piece)
        if call is None:
            call = _Call(piece.index)
            calls.append(call)
        call.add(piece)
    found: dict[str, AssembledCall] = {}
    for position, call in enumerate(call for call in calls if call.name or call.arguments):
        call_id = call.id or f"call_{position}"
        if call_id in found:
            call_id = f"{call_id}_{position}"
        found[call_id] = AssembledCall(call_id, call.name, "".join(call.arguments) or "{}")
    return list(found.values())


def _owner(calls: Sequence[_Call], piece: ToolCallDelta) -> _Call | None:
    """The call that `piece` continues, or None when it opens a new one."""
    if piece.index is not None:
        calls = [call for call in calls if call.index in (piece.index, None)]
    if piece.id:
        for call in reversed(calls):
            if call.id == piece.id:
                return call
    if not calls:
        return None
    latest = calls[-1]
    if piece.id and latest.id:
        return None
    return None if piece.name and latest.name and _is_next(latest, piece) else latest


def _is_next(latest: _Call, piece: ToolCallDelta) -> bool:
    """Whether a piece that names a function, and has no id to go by, begins the next call."""
    if piece.id or latest.is_whole():
        return True
    # Without an index every chunk is a whole call; these two take no arguments.
    return piece.index is None and not latest.arguments and piece.name != latest.name
