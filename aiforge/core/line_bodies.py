"""Bodies of OpenAI's two endpoints: what a line of a file may ask for, and what other providers make of it.

Who speaks OpenAI's wire format is given every parameter as it stands. For everybody else a parameter is read,
or says nothing because its value is OpenAI's default, or is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any, Final, NamedTuple

from aiforge.core.deltas import AssembledCall, CallParams, Completion
from aiforge.core.types import RequestRefusedError, Usage

CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"

NEVER: Final[Mapping[str, Mapping[str, str]]] = {
    CHAT: {"stream": "a line is answered whole"},
    RESPONSES: {
        "stream": "a line is answered whole",
        "background": "a line is answered where it is asked, not in the background",
        "previous_response_id": "a line brings all that it goes on from: lines are answered in any order",
        "conversation": "a line brings all that it goes on from: lines are answered in any order",
    },
}
"""What no line may ask for, whoever answers it, and why."""

_READ: Final = {
    CHAT: frozenset(
        {"model", "messages", "temperature", "max_tokens", "max_completion_tokens", "stop", "tools"}
    ),
    RESPONSES: frozenset({"model", "input", "instructions", "temperature", "max_output_tokens", "tools"}),
}
LABELS: Final = frozenset(
    {"metadata", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}
)
"""What changes nothing of an answer."""
_SAYS_NOTHING: Final[dict[str, tuple[Any, ...]]] = {
    "audio": (),
    "background": (False,),
    "frequency_penalty": (0,),
    "include": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "reasoning": ({},),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "stream": (False,),
    "text": ({}, {"format": {"type": "text"}}),
    "tool_choice": ("auto",),
    "top_logprobs": (0,),
    "top_p": (1,),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
}
"""Values by which a request asks for what it gets anyway."""
_CUT_SHORT: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
_PARTS: Final = {"input_text": "text", "output_text": "text", "text": "text"}


class Refusal(NamedTuple):
    """A parameter that cannot be honoured: where it stands in the body, and why."""

    param: str
    why: str


class _Unread(Exception):
    def __init__(self, param: str, why: str) -> None:
        super().__init__(param)
        self.refusal = Refusal(param, why)


class Asked(NamedTuple):
    """A body as a model takes it that does not speak OpenAI's wire format."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    params: CallParams


def unread(endpoint: str, body: Mapping[str, Any], provider: str) -> Refusal | None:
    """What of a body a provider cannot be given that does not speak OpenAI's wire format."""
    try:
        _asked(endpoint, body, provider)
    except _Unread as found:
        return found.refusal
    return None


def asked(endpoint: str, body: Mapping[str, Any], *, provider: str, model: str) -> Asked:
    """The body, read; raises RequestRefusedError naming what cannot be."""
    try:
        return _asked(endpoint, body, provider)
    except _Unread as found:
        param, why = found.refusal
        raise RequestRefusedError(f"{param}: {why}", provider=provider, model=model) from None


def _asked(endpoint: str, body: Mapping[str, Any], provider: str) -> Asked:
    for name, value in body.items():
        if value is None or name in _READ[endpoint] or name in LABELS:
            continue
        if not any(value == none and _like(value, none) for none in _SAYS_NOTHING.get(name, ())):
            raise _Unread(name, f"provider {provider!r} cannot be given this parameter of OpenAI's")
    stop = body.get("stop")
    limits = (body.get(name) for name in ("max_output_tokens", "max_completion_tokens", "max_tokens"))
    params = CallParams(
        temperature=body.get("temperature"),
        max_tokens=next((limit for limit in limits if limit is not None), None),
        stop=[stop] if isinstance(stop, str) else stop,
    )
    messages = list(body["messages"]) if endpoint == CHAT else _messages(body)
    return Asked(messages, _tools(endpoint, body.get("tools")), params)


def _like(value: Any, other: Any) -> bool:
    """0 and False are equal, and not the same."""
    return isinstance(value, bool) == isinstance(other, bool)


def _tools(endpoint: str, tools: Any) -> list[dict[str, Any]] | None:
    """Functions in the form of chat completions; tools that a provider runs itself cannot be had."""
    if not tools:
        return None
    made = []
    for index, tool in enumerate(tools if isinstance(tools, list) else [tools]):
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise _Unread(f"tools[{index}]", "only tools of type function can be given to this provider")
        function = {name: value for name, value in tool.items() if name not in ("type", "strict")}
        made.append(tool if endpoint == CHAT else {"type": "function", "function": function})
    return made


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a request for a response."""
    said = body["input"]
    items = [{"role": "user", "content": said}] if isinstance(said, str) else said
    messages = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    for index, item in enumerate(items):
        where = f"input[{index}]"
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            content = _content(item.get("content"), f"{where}.content")
            role = item.get("role", "user")
            messages.append({"role": "system" if role == "developer" else role, "content": content})
        elif kind == "function_call":
            _add_call(messages, item)
        elif kind == "function_call_output":
            output = _content(item.get("output"), f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        else:
            raise _Unread(where, f"an item of type {kind!r} cannot be given to this provider")
    return messages


def _add_call(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    """Calls stand behind each other in one message, as a model made them."""
    call = AssembledCall(str(item.get("call_id")), str(item.get("name")), str(item.get("arguments")))
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    messages[-1].setdefault("tool_calls", []).append(call.as_openai())


def _content(content: Any, where: str) -> Any:
    if not isinstance(content, list):
        return content
    parts: list[dict[str, Any]] = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _PARTS:
            parts.append({"type": "text", "text": part.get("text")})
        elif kind == "input_image" and isinstance(part.get("image_url"), str):
            parts.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
        else:
            raise _Unread(f"{where}[{index}]", f"a part of type {kind!r} cannot be given to this provider")
    return parts


def reply(
    endpoint: str, completion: Completion, call_id: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """An answer as OpenAI's endpoint would write it; a response says again what `body` asked for."""
    if endpoint == RESPONSES:
        return _response(completion, call_id, body or {})
    message: dict[str, Any] = {"role": "assistant", "content": completion.text or None, "refusal": None}
    if completion.tool_calls:
        message["tool_calls"] = [call.as_openai() for call in completion.tool_calls]
    choice = {"index": 0, "message": message, "finish_reason": completion.finish_reason, "logprobs": None}
    usage = completion.usage
    return {
        "id": f"chatcmpl-{call_id}", "object": "chat.completion", "created": int(time()),
        "model": completion.model, "choices": [choice],
        "usage": {
            "prompt_tokens": usage.input_tokens, "completion_tokens": usage.output_tokens,
            "total_tokens": usage.input_tokens + usage.output_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        },
    }  # fmt: skip


def _response(completion: Completion, call_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
    short = _CUT_SHORT.get(completion.finish_reason)
    status = "completed" if short is None else "incomplete"
    output: list[dict[str, Any]] = []
    if completion.text or not completion.tool_calls:
        text = {"type": "output_text", "text": completion.text, "annotations": [], "logprobs": []}
        said = {"id": f"msg_{call_id}", "type": "message", "status": status, "role": "assistant"}
        output.append({**said, "content": [text]})
    output += [
        {
            "id": f"fc_{call_id}_{index}", "type": "function_call", "status": "completed",
            "call_id": call.id, "name": call.name, "arguments": call.arguments,
        }
        for index, call in enumerate(completion.tool_calls)
    ]  # fmt: skip
    return {
        "id": f"resp_{call_id}", "object": "response", "created_at": int(time()), "status": status,
        "background": False, "error": None,
        "incomplete_details": None if short is None else {"reason": short},
        "instructions": body.get("instructions"), "max_output_tokens": body.get("max_output_tokens"),
        "metadata": body.get("metadata") or {}, "model": completion.model, "output": output,
        "parallel_tool_calls": True, "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None}, "service_tier": "default", "store": False,
        "temperature": body.get("temperature"), "text": {"format": {"type": "text"}},
        "tool_choice": "auto", "tools": body.get("tools") or [], "top_p": None, "truncation": "disabled",
        "usage": _usage(completion.usage), "user": body.get("user"),
    }  # fmt: skip


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }  # fmt: skip
