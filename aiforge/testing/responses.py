"""OpenAI's `/v1/responses`: what it is asked, and what its answers, events and errors look like as bytes.

A request is read as the chat that it means, so that scripts and rules hold for both endpoints. Nothing is
stored and nothing runs in the background, so what needs either is refused as OpenAI refuses what it lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any, Final, NamedTuple

import msgspec

from aiforge.core.types import Usage
from aiforge.testing.wire import ChatRequest, encode

_ECHOED: Final = (
    "background", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls",
    "previous_response_id", "prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "store",
    "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user",
)  # fmt: skip
"""What a response says again of its request."""
_DEFAULTS: Final[dict[str, Any]] = {
    "background": False, "metadata": {}, "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None}, "service_tier": "default", "store": True,
    "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
    "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled",
}  # fmt: skip


class ResponseRequest(msgspec.Struct, frozen=True):
    """The fields of a request that the server acts on."""

    model: str
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    background: bool | None = None


class AskedResponse(ChatRequest, frozen=True, kw_only=True):
    """The chat that a request for a response means."""

    asked: dict[str, Any]

    @property
    def usage_asked(self) -> bool:
        return True

    def form(self, number: int) -> Response:
        return Response(number, self.model, self.asked)


def as_chat(request: ResponseRequest, body: dict[str, Any]) -> AskedResponse:
    """`body` is the request as it came."""
    return AskedResponse(
        model=request.model,
        messages=messages_of(body),
        stream=request.stream,
        max_tokens=request.max_output_tokens,
        asked=body,
    )


def messages_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a request's instructions and input; of items of other kinds as much as there is."""
    asked = body.get("input")
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked or []
    messages = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    for item in filter(lambda item: isinstance(item, dict), items):
        kind = item.get("type", "message")
        if kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            output = item.get("output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        elif kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
    return messages


class _Item(NamedTuple):
    """Where an item of the output stands, and its id."""

    place: int
    id: str


class Response:
    """One response: as a whole, or as the events of its stream."""

    done: Final = b""

    def __init__(self, number: int, model: str, asked: Mapping[str, Any]) -> None:
        self._number = number
        self._model = model
        self._asked = asked
        self._created = int(time())
        self._sequence = 0
        self._reason = "stop"
        self._texts: list[str] = []
        self._message: _Item | None = None
        self._calls: list[dict[str, Any]] = []
        self._items: list[_Item] = []

    def head(self) -> bytes:
        """The events with which a stream begins."""
        begun = self._response("in_progress", [], None)
        return self._event("response.created", response=begun) + self._event(
            "response.in_progress", response=begun
        )

    def text(self, text: str, usage: Usage | None = None) -> bytes:
        opened = b""
        if self._message is None:
            self._message = self._item("msg")
            item = {**_message(self._message.id, "in_progress", ""), "content": []}
            opened = self._event("response.output_item.added", output_index=self._message.place, item=item)
            opened += self._of_text("response.content_part.added", part=_part(""))
        self._texts.append(text)
        return opened + self._of_text("response.output_text.delta", delta=text, logprobs=[])

    def delta(
        self, delta: Mapping[str, Any], finish_reason: str | None = None, usage: Usage | None = None
    ) -> bytes:
        """The events of a chat's delta; one with a finish reason ends the items."""
        events = self.text(delta["content"]) if delta.get("content") else b""
        for part in delta.get("tool_calls") or ():
            events += self._call(part)
        return events + (self._close(finish_reason) if finish_reason else b"")

    def usage(self, usage: Usage) -> bytes:
        """The last event, which says what the response took."""
        status = "incomplete" if self._reason == "length" else "completed"
        whole = self._response(status, self._output(status), usage)
        return self._event(f"response.{status}", response=whole)

    def completion(self, message: Mapping[str, Any], finish_reason: str, usage: Usage | None) -> bytes:
        """The body of a call that is not streamed."""
        self._reason = finish_reason
        status = "incomplete" if finish_reason == "length" else "completed"
        calls = message.get("tool_calls") or []
        if message.get("content") or not calls:
            self._message = self._item("msg")
            self._texts = [message.get("content") or ""]
        for call in calls:
            self._calls.append(_call(self._item("fc").id, call))
        return encode(self._response(status, self._output(status), usage))

    def error(self, message: str, code: str) -> bytes:
        """An error in the middle of a stream."""
        return self._event("error", code=code, message=message, param=None)

    def _close(self, reason: str) -> bytes:
        self._reason = reason
        status, events = ("incomplete" if reason == "length" else "completed"), b""
        for index, item in enumerate(self._output(status)):
            if item["type"] == "message":
                text = item["content"][0]["text"]
                events += self._of_text("response.output_text.done", text=text, logprobs=[])
                events += self._of_text("response.content_part.done", part=_part(text))
            else:
                events += self._event(
                    "response.function_call_arguments.done",
                    item_id=item["id"],
                    output_index=index,
                    name=item["name"],
                    arguments=item["arguments"],
                )
            events += self._event("response.output_item.done", output_index=index, item=item)
        return events

    def _call(self, part: Mapping[str, Any]) -> bytes:
        function, events = part.get("function") or {}, b""
        if part.get("id") and all(call["call_id"] != part["id"] for call in self._calls):
            item = self._item("fc")
            self._calls.append(_call(item.id, {**part, "function": {**function, "arguments": ""}}))
            started = {**self._calls[-1], "status": "in_progress"}
            events = self._event("response.output_item.added", output_index=item.place, item=started)
        known = [call for call in self._calls if call["call_id"] == part.get("id")] or self._calls[-1:]
        if function.get("arguments") and known:
            known[0]["arguments"] += function["arguments"]
            item = next(item for item in self._items if item.id == known[0]["id"])
            events += self._event(
                "response.function_call_arguments.delta",
                item_id=item.id,
                output_index=item.place,
                delta=function["arguments"],
            )
        return events

    def _item(self, kind: str) -> _Item:
        item = _Item(len(self._items), f"{kind}_{self._number:08d}{len(self._items)}")
        self._items.append(item)
        return item

    def _output(self, status: str) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {call["id"]: call for call in self._calls}
        if self._message is not None:
            found[self._message.id] = _message(self._message.id, status, "".join(self._texts))
        return [found[item.id] for item in self._items]

    def _response(self, status: str, output: list[dict[str, Any]], usage: Usage | None) -> dict[str, Any]:
        said = {name: self._asked.get(name) for name in _ECHOED}
        given = {name: _DEFAULTS.get(name) if value is None else value for name, value in said.items()}
        return {
            "id": f"resp_{self._number:08d}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._model,
            "output": output,
            **given,
            "usage": None if usage is None else _usage(usage),
        }

    def _of_text(self, kind: str, **fields: Any) -> bytes:
        assert self._message is not None
        place = {"item_id": self._message.id, "output_index": self._message.place, "content_index": 0}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = encode({"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), body)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(item_id: str, status: str, text: str) -> dict[str, Any]:
    return {
        "id": item_id, "type": "message", "status": status, "role": "assistant", "content": [_part(text)],
    }  # fmt: skip


def _call(item_id: str, call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {
        "id": item_id, "type": "function_call", "status": "completed", "call_id": call["id"],
        "name": function["name"], "arguments": function["arguments"],
    }  # fmt: skip


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }  # fmt: skip
