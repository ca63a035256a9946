"""OpenAIChat over real HTTP: what a call gives, sends, reports and costs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from aiforge.core.deltas import CallParams, FinishDelta, TextDelta, UsageDelta, assemble
from aiforge.core.types import ProviderError, RateLimitError, StreamCutError, UnavailableError, Usage
from aiforge.testing import TOOL_SHAPES, Cut, Fail, FakeProvider, Raw, Reply, Report, Silence, ToolCall
from tests.aiforge.core.support import HELLO, KEY, WEATHER, ask, hear, openai_model

TEXT = "日本😀\u0085\u2028é"
USAGE = Usage(input_tokens=20, output_tokens=7, cached_tokens=12, reasoning_tokens=3)


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider(api_key=KEY, strict=True) as running:
        yield running


def event(**fields: Any) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def delta(content: Any, finish: str | None = None, **fields: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": content}, "finish_reason": finish}], **fields)


def raw(provider: FakeProvider, *data: bytes) -> None:
    provider.push(Reply(chunks=[Raw(piece) for piece in data], ending="none"))


def test_text_then_usage_then_the_end(provider: FakeProvider) -> None:
    provider.push(Reply(chunks=["Hel", "lo", "!"], usage=USAGE))
    heard = asyncio.run(hear(openai_model(provider.url)))
    assert heard.error is None
    assert heard.deltas == [
        TextDelta("Hel"),
        TextDelta("lo"),
        TextDelta("!"),
        UsageDelta(USAGE),
        FinishDelta("stop"),
    ]


def test_a_whole_answer(provider: FakeProvider) -> None:
    provider.push(Reply(text="Hello!", usage=USAGE))
    answer = asyncio.run(ask(openai_model(provider.url)))
    assert (answer.text, answer.tool_calls, answer.usage) == ("Hello!", [], USAGE)
    assert (answer.finish_reason, answer.model) == ("stop", "gpt-4o-mini")
    assert provider.calls[0].stream is False


def test_text_split_at_every_byte(provider: FakeProvider) -> None:
    """S18: neither bytes inside a character nor U+0085 and U+2028 change the text."""
    stream = delta(TEXT) + delta(TEXT, "stop") + b"data: [DONE]\n\n"
    # JSON may also hold these characters raw, which is where readers of lines go wrong.
    assert TEXT.encode() in stream
    model = openai_model(provider.url)

    async def each() -> list[str]:
        for cut in range(1, len(stream)):
            raw(provider, stream[:cut], stream[cut:])
        return [(await hear(model)).text for _ in range(1, len(stream))]

    assert set(asyncio.run(each())) == {TEXT * 2}


def test_crlf_comments_and_a_missing_last_newline(provider: FakeProvider) -> None:
    stream = b": hi\r\n\r\n" + delta("a").replace(b"\n", b"\r\n") + b": ping\n" + delta("b", "stop").strip()
    raw(provider, stream)
    heard = asyncio.run(hear(openai_model(provider.url)))
    assert (heard.text, heard.error) == ("ab", None)


@pytest.mark.parametrize("shape", TOOL_SHAPES)
def test_tool_calls_in_every_shape(provider: FakeProvider, shape: Any) -> None:
    arguments: list[dict[str, Any]] = (
        [{}, {}]
        if shape == "empty_arguments"
        else [{"city": "Köln"}, {"city": "Rome", "days": [1, {"a": "}"}]}]
    )
    wanted = [ToolCall("weather", arguments[0]), ToolCall("weather_report", arguments[1])]
    provider.push(Reply(text="Let me look.", tool_calls=wanted, tool_shape=shape))
    heard = asyncio.run(hear(openai_model(provider.url), tools=[WEATHER]))
    assert heard.error is None
    assert heard.text == "Let me look."
    assert heard.deltas[-1] == FinishDelta("tool_calls")
    calls = assemble(heard.pieces)
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("weather", arguments[0]),
        ("weather_report", arguments[1]),
    ]
    assert len({call.id for call in calls}) == 2


def test_tool_calls_of_a_whole_answer(provider: FakeProvider) -> None:
    provider.push(Reply(tool_calls=[ToolCall("weather", {"city": "Rome"}, id="call_x")]))
    answer = asyncio.run(ask(openai_model(provider.url), tools=[WEATHER]))
    assert [(call.id, call.name, call.arguments) for call in answer.tool_calls] == [
        ("call_x", "weather", '{"city":"Rome"}')
    ]
    assert answer.finish_reason == "tool_calls"
    assert provider.calls[0].body["tools"] == [WEATHER]


@pytest.mark.parametrize("where", ["asked", "last", "choice", "cumulative"])
def test_usage_wherever_it_stands(provider: FakeProvider, where: Any) -> None:
    provider.push(Reply(chunks=["a", "b"], usage=USAGE, usage_in=where))
    heard = asyncio.run(hear(openai_model(provider.url)))
    assert heard.usages == [USAGE]
    assert [type(item) for item in heard.deltas[-2:]] == [UsageDelta, FinishDelta]


def test_no_usage_is_estimated_and_zero_is_believed(provider: FakeProvider) -> None:
    """C5"""
    provider.push(Reply(text="some words", usage_in="none"), Reply(text="some words", usage=Usage()))
    model = openai_model(provider.url)
    missing, zero = (asyncio.run(hear(model)).usages[0] for _ in range(2))
    assert missing.estimated
    assert missing.input_tokens > 0
    assert missing.output_tokens > 0
    assert zero == Usage()


@pytest.mark.parametrize(
    "usage",
    [None, {}, {"prompt_tokens": None, "completion_tokens": None, "prompt_tokens_details": None}],
)
def test_empty_usage_is_no_usage(provider: FakeProvider, usage: Any) -> None:
    raw(provider, delta("a", "stop"), event(choices=[], usage=usage), b"data: [DONE]\n\n")
    assert asyncio.run(hear(openai_model(provider.url))).usages[0].estimated


def test_unusual_usage_fields(provider: FakeProvider) -> None:
    usage = {"prompt_tokens": "9", "completion_tokens": 2, "prompt_cache_hit_tokens": 4, "extra": [1]}
    raw(provider, delta("a", "stop", usage=usage), b"data: [DONE]\n\n")
    heard = asyncio.run(hear(openai_model(provider.url)))
    assert heard.usages == [Usage(input_tokens=9, output_tokens=2, cached_tokens=4)]


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ({"prompt_tokens": -5000, "completion_tokens": 3}, None),
        ({"prompt_tokens": 5, "completion_tokens": -3}, None),
        ({"prompt_tokens": 10**18, "completion_tokens": 3}, None),
        ({"prompt_tokens": 10**400, "completion_tokens": 3}, None),
        ({"prompt_tokens": 5.5, "completion_tokens": 3}, None),
        ({"prompt_tokens": 5, "completion_tokens": 3.5}, None),
        ({"prompt_tokens": "5.5", "completion_tokens": 3}, None),
        ({"prompt_tokens": "x", "completion_tokens": 3}, None),
        ({"prompt_tokens": 1e300, "completion_tokens": 3}, None),
        ({"completion_tokens": 3}, None),
        ({"prompt_tokens": 7}, None),
        ({"prompt_tokens": 7, "total_tokens": 9}, Usage(7, 2)),
        ({"completion_tokens": 2, "total_tokens": 9}, Usage(7, 2)),
        ({"prompt_tokens": 7, "total_tokens": 5}, None),
        ({"total_tokens": 9}, None),
        ({"prompt_tokens": 7, "completion_tokens": 2, "prompt_cache_hit_tokens": 8}, Usage(7, 2)),
        (
            {
                "prompt_tokens": 7,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            Usage(7, 2),
        ),
        (
            {
                "prompt_tokens": 7,
                "completion_tokens": 2,
                "prompt_tokens_details": {"audio_tokens": 6},
                "completion_tokens_details": {"audio_tokens": 2},
            },
            Usage(7, 2, input_audio_tokens=6, output_audio_tokens=2),
        ),
        (
            {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"audio_tokens": 8}},
            Usage(7, 2),
        ),
        ([], None),
        ("many", None),
        (5, None),
        ({"prompt_tokens": True, "completion_tokens": "x"}, None),
        ({"prompt_tokens": 7.0, "completion_tokens": "2"}, Usage(7, 2)),
        ({"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": "x"}, Usage(7, 2)),
        (
            {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": -40}},
            Usage(7, 2),
        ),
        (
            {
                "prompt_tokens": 7,
                "completion_tokens": 2,
                "completion_tokens_details": {"reasoning_tokens": []},
            },
            Usage(7, 2),
        ),
    ],
)
def test_usage_that_cannot_be_is_estimated(provider: FakeProvider, said: Any, read: Usage | None) -> None:
    raw(provider, delta("some words", "stop", usage=said), b"data: [DONE]\n\n")
    (usage,) = asyncio.run(hear(openai_model(provider.url))).usages
    assert usage == read or (read is None and usage.estimated and usage.input_tokens > 0)


CHOICE = {"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}
TOOL_CALL = {"id": 5, "index": "x", "function": {"name": "weather", "arguments": {"city": "Rome"}}}


ODD_MESSAGES: list[dict[str, Any]] = [
    {"reasoning": {"steps": []}},
    {"reasoning_content": [1]},
    {"refusal": False},
    {"tool_calls": {}},
    {"tool_calls": [None]},
    {"content": ["fi", {"type": "text", "text": "ne"}, {"text": 5}, 7]},
]


@pytest.mark.parametrize(
    "odd",
    [
        {"model": 5},
        {"model": {}},
        {"usage": 1.5},
        {"error": None},
        {"choices": [{**CHOICE, "index": None}]},
        {"choices": [{**CHOICE, "finish_reason": 1}]},
        {"choices": [{**CHOICE, "usage": []}]},
        *({"choices": [{**CHOICE, "message": {"content": "fine", **message}}]} for message in ODD_MESSAGES),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_no_answer_is_lost_to_a_detail(provider: FakeProvider, odd: dict[str, Any], *, stream: bool) -> None:
    provider.push(Reply(body=json.dumps({"choices": [CHOICE], **odd})))
    model = openai_model(provider.url)
    if stream:
        heard = asyncio.run(hear(model))
        assert (heard.error, heard.text) == (None, "fine")
    else:
        assert asyncio.run(ask(model)).text == "fine"


def test_a_tool_call_with_odd_details_is_one(provider: FakeProvider) -> None:
    provider.push(Reply(body=json.dumps({"choices": [{"message": {"tool_calls": [TOOL_CALL]}}]})))
    (call,) = asyncio.run(ask(openai_model(provider.url), tools=[WEATHER])).tool_calls
    assert (call.id, call.name, call.arguments) == ("5", "weather", '{"city":"Rome"}')


def test_content_in_parts_and_refusals(provider: FakeProvider) -> None:
    parts = [{"type": "thinking", "thinking": []}, {"type": "text", "text": "part"}]
    refusal = event(choices=[{"index": 0, "delta": {"content": None, "refusal": "I cannot."}}])
    second = event(choices=[{"index": 1, "delta": {"content": "another choice"}}])
    raw(provider, delta(parts), delta(None), delta(""), second, refusal, delta(None, "stop"))
    assert asyncio.run(hear(openai_model(provider.url))).text == "partI cannot."


def test_the_request(provider: FakeProvider) -> None:
    params = CallParams(temperature=0.2, max_tokens=9, stop=["END"])
    model = openai_model(provider.url)
    asyncio.run(hear(model, tools=[WEATHER], params=params, call_id="call-77"))
    asyncio.run(hear(model))
    full, bare = provider.calls
    assert full.call_id == "call-77"
    assert full.headers["authorization"] == "[redacted]"
    assert full.body == {
        "model": "gpt-4o-mini",
        "messages": HELLO,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.2,
        "max_tokens": 9,
        "stop": ["END"],
        "tools": [WEATHER],
    }
    assert bare.body.keys() == {"model", "messages", "stream", "stream_options"}


def test_a_minimal_endpoint_gets_six_fields_at_most(provider: FakeProvider) -> None:
    params = CallParams(temperature=0.2, max_tokens=9, stop=["END"])
    model = openai_model(provider.url, MINIMAL_ENDPOINT=True, MODEL="o3-mini")
    heard = asyncio.run(hear(model, tools=[WEATHER], params=params))
    assert provider.calls[0].body.keys() == {
        "model",
        "messages",
        "stream",
        "temperature",
        "max_tokens",
        "stop",
    }
    assert heard.error is None


@pytest.mark.parametrize("name", ["o3-mini", "gpt-5-nano", "openai/o1"])
def test_reasoning_models_have_another_word_for_the_limit(provider: FakeProvider, name: str) -> None:
    asyncio.run(hear(openai_model(provider.url, MODEL=name), params=CallParams(max_tokens=9)))
    assert provider.calls[0].body["max_completion_tokens"] == 9
    assert "max_tokens" not in provider.calls[0].body


def test_the_base_url_keeps_its_query(provider: FakeProvider) -> None:
    assert (
        openai_model(provider.url + "/?api-version=1").url == f"{provider.url}/chat/completions?api-version=1"
    )


@pytest.mark.parametrize("how", ["reset", "close", "end"])
def test_a_cut_stream(provider: FakeProvider, how: Any) -> None:
    provider.push(Reply(chunks=["one", " two", Cut(how)]))
    heard = asyncio.run(hear(openai_model(provider.url)))
    assert heard.text == "one two"
    assert isinstance(heard.error, StreamCutError)
    assert heard.error.retryable
    assert (heard.error.provider, heard.error.model) == ("openai", "gpt-4o-mini")
    assert not any(isinstance(item, FinishDelta) for item in heard.deltas)


def test_half_an_event_at_the_end_is_a_cut(provider: FakeProvider) -> None:
    raw(provider, delta("one"), delta("two")[:-20])
    heard = asyncio.run(hear(openai_model(provider.url)))
    assert heard.text == "one"
    assert isinstance(heard.error, StreamCutError)


def test_a_cut_whole_answer(provider: FakeProvider) -> None:
    provider.push(Reply(chunks=["one", Cut("close")]))
    with pytest.raises((StreamCutError, UnavailableError)):
        asyncio.run(ask(openai_model(provider.url)))


@pytest.mark.parametrize("ending", ["finish", "done"])
def test_one_word_of_the_end_is_enough(provider: FakeProvider, ending: Any) -> None:
    provider.push(Reply(chunks=["one"], ending=ending))
    assert asyncio.run(hear(openai_model(provider.url))).error is None
    raw(provider, delta("one"), b"data: [DONE]\n\n")
    assert asyncio.run(hear(openai_model(provider.url))).deltas[-1] == FinishDelta("stop")


def test_what_breaks_after_the_end_does_not_matter(provider: FakeProvider) -> None:
    provider.push(Reply(chunks=[Raw(delta("one", "stop")), Cut("reset")]))
    heard = asyncio.run(hear(openai_model(provider.url)))
    assert (heard.text, heard.error) == ("one", None)
    assert heard.usages[0].estimated


def test_a_reported_error_after_text_and_usage(provider: FakeProvider) -> None:
    """C14: what a failed call used is known before the error comes."""
    provider.push(Reply(chunks=["one", Report(USAGE), Fail("the engine caught fire")]))
    heard = asyncio.run(hear(openai_model(provider.url)))
    assert heard.text == "one"
    assert heard.usages == [USAGE]
    assert isinstance(heard.error, UnavailableError)
    assert "the engine caught fire" in str(heard.error)


@pytest.mark.parametrize(
    ("data", "cls", "text"),
    [
        (event(error={"message": "slow down", "code": "rate_limit_exceeded"}), RateLimitError, "slow down"),
        (event(error={"message": "bad gateway", "code": 502}), UnavailableError, "bad gateway"),
        (event(error="just words"), ProviderError, "just words"),
        (event(object="error", message="too long", code=400), ProviderError, "too long"),
        (b"event: error\n" + event(type="error", error={"message": "busy"}), ProviderError, "busy"),
        (b"data: {broken\n\n", ProviderError, "{broken"),
        (b"data: [1, 2]\n\n", ProviderError, "[1, 2]"),
        (b'data: "\xff\xfe"\n\n', ProviderError, "not a chat completion"),
    ],
)
def test_errors_inside_a_stream(
    provider: FakeProvider, data: bytes, cls: type[ProviderError], text: str
) -> None:
    raw(provider, delta("before") + data + delta("after"))
    heard = asyncio.run(hear(openai_model(provider.url)))
    assert heard.text == "before"
    assert type(heard.error) is cls or (cls is ProviderError and isinstance(heard.error, cls))
    assert text in str(heard.error)


def test_a_provider_that_does_not_stream(provider: FakeProvider) -> None:
    body = {
        "model": "llama",
        "choices": [{"message": {"role": "assistant", "content": "all at once"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    provider.push(Reply(body=json.dumps(body, indent=2)))
    heard = asyncio.run(hear(openai_model(provider.url)))
    assert (heard.text, heard.error) == ("all at once", None)
    assert heard.usages == [Usage(input_tokens=3, output_tokens=4)]


def test_a_provider_that_always_streams(provider: FakeProvider) -> None:
    body = (delta("all ") + delta("the same", "stop") + b"data: [DONE]\n\n").decode()
    provider.push(Reply(body=body))
    assert asyncio.run(ask(openai_model(provider.url))).text == "all the same"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("<!DOCTYPE html><html><body>Sign in</body></html>", "an HTML page; is the base URL right?"),
        ("upstream connect error", "upstream connect error"),
        ('{"detail": "nothing here"}', "nothing here"),
        ('{"choices": []}', "not a chat completion"),
        ("[]", "not an event stream"),
    ],
)
def test_a_success_that_is_none(provider: FakeProvider, body: str, text: str) -> None:
    provider.push(Reply(body=body), Reply(body=body))
    model = openai_model(provider.url)
    heard = asyncio.run(hear(model))
    assert type(heard.error) is ProviderError
    assert heard.error.status == 200
    assert text in str(heard.error)
    assert not heard.error.retryable
    with pytest.raises(ProviderError, match="openai, gpt-4o-mini"):
        asyncio.run(ask(model))


def test_an_empty_success_is_a_cut(provider: FakeProvider) -> None:
    provider.push(Reply(body=""))
    assert isinstance(asyncio.run(hear(openai_model(provider.url))).error, StreamCutError)


def test_slow_bytes_of_one_event(provider: FakeProvider) -> None:
    """A stream that drips is alive, however slowly, and is never given up."""
    drips = [step for byte in delta("slow", "stop") for step in (Raw(bytes([byte])), Silence(0.004))]
    provider.push(Reply(chunks=drips))
    heard = asyncio.run(hear(openai_model(provider.url, TOKEN_TIMEOUT=0.3, FIRST_TOKEN_TIMEOUT=5)))
    assert (heard.text, heard.error) == ("slow", None)
