"""Each parameter that OpenAI documents is read, says nothing, or is refused by its name."""

from __future__ import annotations

from typing import Any, Final

import pytest
from openai.types.chat import ChatCompletion, completion_create_params
from openai.types.responses import Response, response_create_params

from aiforge.core.completions import longest_answer
from aiforge.core.deltas import AssembledCall, Completion
from aiforge.core.line_bodies import CHAT, RESPONSES, asked, reply, unread
from aiforge.core.types import RequestRefusedError, Usage

MESSAGES: Final = [{"role": "user", "content": "Hi"}]
ASKED: Final[dict[str, dict[str, Any]]] = {
    CHAT: {"model": "m", "messages": MESSAGES},
    RESPONSES: {"model": "m", "input": "Hi"},
}
DOCUMENTED: Final = {
    CHAT: set(completion_create_params.CompletionCreateParamsBase.__annotations__) | {"stream"},
    RESPONSES: set(response_create_params.ResponseCreateParamsBase.__annotations__) | {"stream"},
}
FUNCTION: Final = {"name": "add", "parameters": {"type": "object"}}
READ: Final[dict[str, dict[str, Any]]] = {
    CHAT: {
        "temperature": 0.5, "max_tokens": 5, "max_completion_tokens": 5, "stop": ["x"],
        "tools": [{"type": "function", "function": FUNCTION}],
    },
    RESPONSES: {
        "instructions": "Be short.", "temperature": 0.5, "max_output_tokens": 5,
        "tools": [{"type": "function", **FUNCTION}],
    },
}  # fmt: skip
LABELS: Final[dict[str, Any]] = {
    "metadata": {"a": "b"}, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
}  # fmt: skip
NOTHING: Final[dict[str, Any]] = {
    "background": False, "frequency_penalty": 0, "include": [], "logit_bias": {}, "logprobs": False,
    "modalities": ["text"], "n": 1, "parallel_tool_calls": True, "presence_penalty": 0.0, "reasoning": {},
    "response_format": {"type": "text"}, "service_tier": "auto", "store": False, "stream": False,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "top_logprobs": 0, "top_p": 1,
    "truncation": "disabled", "verbosity": "medium",
}  # fmt: skip
SAYS: Final[dict[str, Any]] = {
    "access_programs": {"a": 1}, "audio": {"voice": "alloy"}, "background": True,
    "background_options": {"a": 1},
    "context_management": [{"type": "compaction"}], "conversation": "conv_1", "frequency_penalty": 1,
    "function_call": "auto", "functions": [FUNCTION], "image": {"a": 1},
    "include": ["reasoning.encrypted_content"],
    "logit_bias": {"1": 1}, "logprobs": True, "max_tool_calls": 3, "modalities": ["text", "audio"],
    "moderation": {"a": 1}, "n": 2, "parallel_tool_calls": False, "prediction": {"type": "content"},
    "presence_penalty": 1, "previous_response_id": "resp_1", "prompt": {"id": "p"},
    "prompt_cache_options": {"a": 1}, "reasoning": {"effort": "low"}, "reasoning_effort": "low",
    "response_format": {"type": "json_object"}, "seed": 7, "service_tier": "flex", "store": True,
    "stream": True, "stream_options": {"include_usage": True}, "text": {"format": {"type": "json_schema"}},
    "tool_choice": "required", "top_logprobs": 2, "top_p": 0.5, "truncation": "auto", "verbosity": "low",
    "web_search_options": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("endpoint", "name"),
    [(endpoint, name) for endpoint, names in DOCUMENTED.items() for name in sorted(names)],
)
def test_a_documented_parameter_is_never_ignored(endpoint: str, name: str) -> None:
    body = ASKED[endpoint]
    if name in body:
        return
    assert unread(endpoint, {**body, name: None}, "offline") is None
    if name in READ[endpoint] or name in LABELS:
        given = READ[endpoint].get(name, LABELS.get(name))
        assert unread(endpoint, {**body, name: given}, "offline") is None
        return
    if name in NOTHING:
        assert unread(endpoint, {**body, name: NOTHING[name]}, "offline") is None
    refusal = unread(endpoint, {**body, name: SAYS[name]}, "offline")
    assert refusal == (name, "provider 'offline' cannot be given this parameter of OpenAI's")


def test_what_nobody_documents_is_refused_too() -> None:
    with pytest.raises(RequestRefusedError, match="top_k: provider 'offline' cannot be given"):
        asked(CHAT, {**ASKED[CHAT], "top_k": 5}, provider="offline", model="m")


def test_0_is_no_false() -> None:
    assert unread(CHAT, {**ASKED[CHAT], "n": True}, "offline") is not None
    assert unread(CHAT, {**ASKED[CHAT], "logprobs": 0}, "offline") is not None


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES])
def test_what_is_read_reaches_the_model(endpoint: str) -> None:
    read = asked(endpoint, {**ASKED[endpoint], **READ[endpoint]}, provider="p", model="m")
    assert (read.params.temperature, read.params.max_tokens) == (0.5, 5)
    assert read.params.stop == (["x"] if endpoint == CHAT else None)
    assert read.tools == [{"type": "function", "function": FUNCTION}]
    before = [] if endpoint == CHAT else [{"role": "system", "content": "Be short."}]
    assert read.messages == [*before, *MESSAGES]


def test_items_become_messages() -> None:
    items = [
        {"role": "developer", "content": "Be kind."},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is this?"},
                {"type": "input_image", "image_url": "https://example.org/a.png"},
            ],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see"}]},
        {"type": "function_call", "call_id": "x", "name": "add", "arguments": "{}"},
        {"type": "function_call", "call_id": "y", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "x", "output": "1"},
    ]
    read = asked(RESPONSES, {"model": "m", "input": items}, provider="p", model="m")
    system, user, assistant, tool = read.messages
    assert system == {"role": "system", "content": "Be kind."}
    assert user["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ]
    assert assistant["content"] == [{"type": "text", "text": "Let me see"}]
    assert [call["id"] for call in assistant["tool_calls"]] == ["x", "y"]
    assert tool == {"role": "tool", "tool_call_id": "x", "content": "1"}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0]"),
        ({"input": ["text"]}, "input[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0]",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": "all"}, "tools[0]"),
    ],
)
def test_what_has_no_counterpart_is_named(more: dict[str, Any], param: str) -> None:
    refusal = unread(RESPONSES, {**ASKED[RESPONSES], **more}, "offline")
    assert refusal is not None
    assert refusal.param == param


def completion(**more: Any) -> Completion:
    known: dict[str, Any] = {
        "text": "Hello", "tool_calls": [], "usage": Usage(3, 2, cached_tokens=1), "finish_reason": "stop",
        "model": "m-1",
    }  # fmt: skip
    return Completion(**{**known, **more})


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("stop", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
    ],
)
def test_a_response_is_one_of_openais(reason: str, status: str, why: str | None) -> None:
    body = {**ASKED[RESPONSES], **READ[RESPONSES], "metadata": {"a": "b"}}
    said = Response.model_validate(reply(RESPONSES, completion(finish_reason=reason), "c1", body))
    assert (said.output_text, said.status, said.model) == ("Hello", status, "m-1")
    assert (said.incomplete_details.reason if said.incomplete_details else None) == why
    assert (said.instructions, said.max_output_tokens, said.metadata) == ("Be short.", 5, {"a": "b"})
    assert said.usage is not None
    assert (said.usage.total_tokens, said.usage.input_tokens_details.cached_tokens) == (5, 1)


def test_calls_of_functions_are_items_of_a_response() -> None:
    calls = [AssembledCall("x", "add", '{"a":1}')]
    said = Response.model_validate(reply(RESPONSES, completion(text="", tool_calls=calls), "c1"))
    (made,) = said.output
    assert made.type == "function_call"
    assert (made.call_id, made.name, made.arguments) == ("x", "add", '{"a":1}')


def test_a_chat_completion_is_one_of_openais() -> None:
    said = ChatCompletion.model_validate(reply(CHAT, completion(), "c1"))
    assert said.choices[0].message.content == "Hello"
    assert said.usage is not None
    assert said.usage.prompt_tokens_details is not None
    assert said.usage.prompt_tokens_details.cached_tokens == 1


@pytest.mark.parametrize(
    ("body", "most"),
    [
        (b'{"max_tokens":7}', 7),
        (b'{"max_tokens":0,"max_completion_tokens":9}', 9),
        (b'{"max_output_tokens":-5}', None),
        (b'{"max_tokens":true}', None),
        (b'{"max_tokens":"7"}', None),
        (b"{}", None),
    ],
)
def test_what_bounds_an_answer(body: bytes, most: int | None) -> None:
    """What is no bound must not make room in a budget."""
    assert longest_answer(body) == most
