"""The provider server as clients meet it: the real OpenAI SDK, aiohttp, and its own routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from typing import Any

import aiohttp
import openai
import pytest

from aiforge.core.types import ConfigError, Usage
from aiforge.testing import (
    Delta,
    Fail,
    FakeProvider,
    Faults,
    Gate,
    RecordedCall,
    Reply,
    Report,
    Rule,
    Script,
    ToolCall,
    failure,
    rate_limited,
)

QUESTION: list[Any] = [{"role": "user", "content": "Where is my order?"}]


@contextmanager
def sdk(provider: FakeProvider, key: str = "sk-secret") -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=provider.url, api_key=key, max_retries=0) as client:
        yield client


@asynccontextmanager
async def http_client(provider: FakeProvider) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(provider.root, connector=aiohttp.TCPConnector(limit=0)) as opened:
        yield opened


def ask(client: openai.OpenAI, question: str = "Where is my order?", **more: Any) -> Any:
    messages: list[Any] = [{"role": "user", "content": question}]
    return client.chat.completions.create(model="m", messages=messages, **more)


def test_the_sdk_gets_whole_answers_and_streams() -> None:
    with FakeProvider("Hello there.", "Hello again.") as provider, sdk(provider) as client:
        whole = ask(client)
        assert whole.choices[0].message.content == "Hello there."
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage.completion_tokens == 2
        chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert [text for text in texts if text] == ["Hello", " again."]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_the_default_answer_is_about_the_question_and_repeatable() -> None:
    with FakeProvider(tokens=7) as provider, sdk(provider) as client:
        first, again, other = ask(client), ask(client), ask(client, "And my invoice?")
        cut = ask(client, max_tokens=3)
        streamed = "".join(c.choices[0].delta.content or "" for c in ask(client, stream=True))
    text = first.choices[0].message.content
    assert text.startswith("About “Where is my order?”: ")
    assert text == again.choices[0].message.content == streamed
    assert other.choices[0].message.content != text
    assert first.usage.completion_tokens == 7
    assert (cut.usage.completion_tokens, cut.choices[0].finish_reason) == (3, "length")


def test_errors_reach_the_sdk_as_its_own() -> None:
    script = (rate_limited(1.5), failure(503, "busy"), Reply(status=502, body="<html>bad gateway</html>"))
    with FakeProvider(*script) as provider, sdk(provider) as client:
        with pytest.raises(openai.RateLimitError) as limited:
            ask(client)
        assert limited.value.response.headers["retry-after"] == "2"
        assert limited.value.response.headers["retry-after-ms"] == "1500"
        with pytest.raises(openai.InternalServerError, match="busy"):
            ask(client)
        with pytest.raises(openai.InternalServerError) as bad:
            ask(client)
        assert bad.value.response.text == "<html>bad gateway</html>"
        assert [call.status for call in provider.calls] == [429, 503, 502]
        assert {call.end for call in provider.calls} == {"refused"}


def test_an_error_in_the_middle_of_a_stream() -> None:
    with FakeProvider(Reply(chunks=["a", "b", Fail("out of memory")])) as provider, sdk(provider) as client:
        stream = ask(client, stream=True)
        assert [next(stream).choices[0].delta.content for _ in range(3)] == ["", "a", "b"]
        with pytest.raises(openai.APIError, match="out of memory"):
            next(stream)


def test_every_form_of_retry_after() -> None:
    assert rate_limited(2, form="seconds").headers == {"retry-after": "2"}
    assert rate_limited(0.25, form="ms").headers == {"retry-after-ms": "250"}
    assert rate_limited(2, form="date").headers["retry-after"].endswith("GMT")
    assert rate_limited(2, form="none").headers == {}


def test_the_log_holds_what_was_asked_and_sent_but_no_key() -> None:
    with FakeProvider("one two three") as provider, sdk(provider) as client:
        list(ask(client, stream=True, extra_headers={"x-aiforge-call-id": "c-1"}))
        provider.wait_until(lambda: provider.calls[0].end != "running")
        call = provider.calls[0]
    assert call.call_id == "c-1"
    assert call.headers["authorization"] == "[redacted]"
    assert call.body["stream"] is True
    assert call.question == "Where is my order?"
    assert (call.status, call.chunks, call.end, call.stream) == (200, 3, "answered", True)
    assert call.reported is None
    assert call.used is not None
    assert call.used.output_tokens == 3
    assert call.closed is not None
    assert call.arrived <= call.closed
    assert "sk-secret" not in repr(call)


def test_cost_is_exact_and_told_apart_from_what_no_client_was_told() -> None:
    usage = Usage(input_tokens=262_960, output_tokens=1_744, cached_tokens=257_955)
    prices = Decimal("1.25"), Decimal(10), Decimal("0.625")
    with FakeProvider(Reply(text="x", usage=usage), "a b c") as provider, sdk(provider) as client:
        whole = ask(client)
        assert whole.usage.prompt_tokens_details.cached_tokens == 257_955
        list(ask(client, stream=True))
        provider.wait_until(lambda: provider.calls.running == 0)
        assert provider.calls.cost(*prices) == Decimal("0.184918125")
        assert provider.calls.cost(*prices, untold=True) > Decimal("0.184918125")
        assert provider.calls.untold.output_tokens == 3


@pytest.mark.parametrize(
    ("usage_in", "asked", "where"),
    [
        ("asked", True, "last"),
        ("asked", False, "none"),
        ("last", False, "last"),
        ("choice", False, "choice"),
        ("cumulative", False, "cumulative"),
        ("none", True, "none"),
    ],
)
def test_every_place_of_usage(usage_in: Any, asked: bool, where: str) -> None:
    more: dict[str, Any] = {"stream_options": {"include_usage": True}} if asked else {}
    with FakeProvider(Reply(chunks=["a", "b"], usage_in=usage_in)) as provider, sdk(provider) as client:
        chunks = list(ask(client, stream=True, **more))
        provider.wait_until(lambda: provider.calls.running == 0)
        reported = provider.calls[0].reported
    counts = [(bool(chunk.choices), chunk.usage.completion_tokens) for chunk in chunks if chunk.usage]
    expected = {
        "last": [(False, 2)],
        "choice": [(True, 2)],
        "cumulative": [(True, 1), (True, 2), (True, 2)],
        "none": [],
    }
    assert counts == expected[where]
    assert (reported is None) == (where == "none")


def test_usage_of_zero_and_usage_before_a_failure() -> None:
    zero = Reply(text="x", usage=Usage(), usage_in="last")
    failing = Reply(chunks=["a", Report(Usage(10, 5)), Fail()])
    with FakeProvider(zero, failing) as provider, sdk(provider) as client:
        chunks = list(ask(client, stream=True))
        assert chunks[-1].usage.total_tokens == 0
        with pytest.raises(openai.APIError):
            list(ask(client, stream=True))
        provider.wait_until(lambda: provider.calls.running == 0)
        assert provider.calls.reported == Usage(10, 5)


def test_echo_gives_back_the_messages() -> None:
    with FakeProvider(default=Reply(echo=True)) as provider, sdk(provider) as client:
        text = ask(client, "é  \u2028 x").choices[0].message.content
    assert text == '[{"role":"user","content":"é  \u2028 x"}]'


def test_functions_answer_calls() -> None:
    def answer(call: RecordedCall) -> Reply | str:
        return f"call {call.number} of {call.model}" if call.number == 1 else Reply(text="later")

    def broken(call: RecordedCall) -> str:
        raise KeyError("no such thing")

    with FakeProvider(answer, answer, broken) as provider, sdk(provider) as client:
        assert ask(client).choices[0].message.content == "call 1 of m"
        assert ask(client).choices[0].message.content == "later"
        with pytest.raises(openai.InternalServerError, match="no such thing"):
            ask(client)


def test_rules_come_before_the_script() -> None:
    with FakeProvider("scripted") as provider, sdk(provider) as client:
        provider.when("line 37", failure(400), times=1)
        with pytest.raises(openai.BadRequestError):
            ask(client, "this is line 37")
        assert ask(client, "this is line 37").choices[0].message.content == "scripted"


def test_whole_answers_assemble_raw_deltas() -> None:
    deltas = [
        Delta({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"a":'}}]}),
        Delta({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": '{"b":'}}]}),
        Delta({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
        Delta({"tool_calls": [{"index": 1, "function": {"arguments": "2}"}}]}),
    ]
    with FakeProvider(Reply(chunks=["Wait.", *deltas])) as provider, sdk(provider) as client:
        choice = ask(client).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Wait."
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert calls == [("a", "f", '{"a":1}'), ("b", "g", '{"b":2}')]


def test_the_sdk_reads_streamed_tool_calls() -> None:
    reply = Reply(text="Let me see.", tool_calls=[ToolCall("add", {"a": 1, "b": 2}), ToolCall("now")])
    with (
        FakeProvider(reply) as provider,
        sdk(provider) as client,
        client.chat.completions.stream(model="m", messages=QUESTION) as stream,
    ):
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("add", '{"a":1,"b":2}'),
        ("now", "{}"),
    ]


def test_models_key_and_strictness_are_refused_like_openai_does() -> None:
    with FakeProvider(models=["a", "b"], api_key="right", strict=True) as provider:
        with sdk(provider, "wrong") as client, pytest.raises(openai.AuthenticationError):
            ask(client)
        with sdk(provider, "right") as client:
            assert [model.id for model in client.models.list()] == ["a", "b"]
            with pytest.raises(openai.NotFoundError, match="does not exist"):
                ask(client)
            orphan: list[Any] = [*QUESTION, {"role": "tool", "tool_call_id": "x", "content": "1"}]
            with pytest.raises(openai.BadRequestError, match="answers no call") as refused:
                client.chat.completions.create(model="a", messages=orphan)
            assert refused.value.param == "messages"
            assert client.chat.completions.create(model="a", messages=QUESTION).choices


def test_bad_requests_name_the_field() -> None:
    async def main() -> None:
        async with FakeProvider() as provider, http_client(provider) as http:
            url = "/v1/chat/completions"
            for body, param in (
                ('{"model": "m", "messages": "hi"}', "messages"),
                ('{"messages": []}', "model"),
                ('{"model": "m", "messages": [], "n": 2}', "n"),
                ("{", None),
            ):
                async with http.post(url, data=body) as response:
                    assert response.status == 400
                    assert (await response.json())["error"]["param"] == param
            async with http.get("/v1/nothing") as response:
                assert response.status == 404
                assert (await response.json())["error"]["code"] == "unknown_url"

    asyncio.run(main())


def test_seeded_faults_strike_the_same_calls_each_time() -> None:
    async def statuses(seed: int) -> tuple[list[int | None], list[str]]:
        faults = Faults(rate_429=0.1, rate_500=0.1, cut=1, retry_after=0.05, seed=seed)
        async with FakeProvider(faults=faults) as provider, http_client(provider) as http:
            for _ in range(60):
                try:
                    async with http.post(
                        "/v1/chat/completions", json={"model": "m", "messages": QUESTION}
                    ) as r:
                        if r.status == 429:
                            assert r.headers["retry-after-ms"] == "50"
                        await r.read()
                except aiohttp.ClientError:
                    pass
            return [call.status for call in provider.calls], [call.end for call in provider.calls]

    first, ends = asyncio.run(statuses(3))
    assert (first, ends) == asyncio.run(statuses(3))
    assert first != asyncio.run(statuses(4))[0]
    assert 2 <= first.count(429) <= 14
    assert 2 <= first.count(500) <= 14
    assert ends.count("cut") == 1


def test_concurrency_is_counted() -> None:
    async def main() -> None:
        async with (
            FakeProvider(default=Reply(chunks=["a", Gate("go"), "b"])) as provider,
            http_client(provider) as http,
        ):

            async def call() -> bytes:
                body = {"model": "m", "messages": QUESTION, "stream": True}
                async with http.post("/v1/chat/completions", json=body) as response:
                    return await response.read()

            calls = [asyncio.ensure_future(call()) for _ in range(300)]
            await provider.wait_until_async(lambda: sum(call.chunks == 1 for call in provider.calls) == 300)
            assert provider.calls.running == 300
            provider.open("go")
            assert all(b"[DONE]" in body for body in await asyncio.gather(*calls))
            await provider.wait_until_async(lambda: provider.calls.running == 0)
            assert provider.calls.peak_concurrency == 300
            assert sorted(call.concurrency for call in provider.calls) == list(range(1, 301))

    asyncio.run(main())


def test_the_routes_do_what_the_methods_do() -> None:
    async def main() -> None:
        async with FakeProvider() as provider, http_client(provider) as http:
            script = {
                "replies": [
                    {"chunks": ["a", {"type": "raw", "data": "Og0K"}, {"type": "gate", "name": "g"}, "b"]},
                    {"status": 429, "headers": {"retry-after": "3"}},
                ],
                "rules": [{"contains": "magic", "reply": {"text": "abracadabra"}}],
                "default": {"text": "nothing"},
            }
            async with http.post("/script", json=script) as response:
                assert await response.json() == {"waiting": 2}
            async with http.post("/open", json={"gate": "g"}) as response:
                assert response.status == 200
            seen = []
            for question, stream in (("hi", True), ("hi", False), ("magic", False), ("hi", False)):
                body = {"model": "m", "messages": [{"role": "user", "content": question}], "stream": stream}
                async with http.post("/v1/chat/completions", json=body) as response:
                    seen.append((response.status, response.headers.get("retry-after"), await response.text()))
            assert '"a"' in seen[0][2]
            assert '"b"' in seen[0][2]
            assert seen[1][:2] == (429, "3")
            assert "abracadabra" in seen[2][2]
            assert "nothing" in seen[3][2]
            async with http.get("/calls", params={"after": 1}) as response:
                log = await response.json()
            assert (log["total"], log["running"], log["peak_concurrency"]) == (4, 0, 1)
            assert [call["number"] for call in log["calls"]] == [2, 3, 4]
            assert log["calls"][1]["body"]["messages"][0]["content"] == "magic"
            assert log["calls"][1]["end"] == "answered"
            async with http.post("/reset") as response:
                assert response.status == 200
            assert provider.calls.total == 0
            async with http.post("/script", json={"reply": {}}) as response:
                assert response.status == 400
                assert "reply" in (await response.json())["error"]["message"]

    asyncio.run(main())


def test_scripts_and_reset_in_process() -> None:
    with FakeProvider("first") as provider, sdk(provider) as client:
        provider.extend(
            Script(replies=[Reply(text="second")], rules=[Rule(contains="r", reply=Reply(text="rule"))])
        )
        provider.push("third")
        answers = [ask(client, question).choices[0].message.content for question in ("x", "r", "x", "x")]
        assert answers == ["first", "rule", "second", "third"]
        provider.reset()
        assert len(provider.calls) == 0
        assert ask(client, "r").choices[0].message.content == "first"


def test_the_log_can_be_bounded_and_totals_stay_whole() -> None:
    with FakeProvider(keep_calls=2) as provider, sdk(provider) as client:
        for _ in range(5):
            ask(client)
        assert [call.number for call in provider.calls] == [4, 5]
        assert provider.calls.total == 5
        assert provider.calls.reported.output_tokens == 100


def test_a_taken_port_is_a_clear_error() -> None:
    with FakeProvider() as provider, pytest.raises(ConfigError, match=str(provider.port)):
        FakeProvider(port=provider.port).__enter__()


def test_waiting_in_vain_says_what_the_log_holds() -> None:
    with FakeProvider("x") as provider, sdk(provider) as client:
        ask(client)
        with pytest.raises(TimeoutError, match="1 calls, 0 running"):
            provider.wait_until(lambda: provider.calls.total == 2, 0.05)


def test_contradictory_replies_are_refused() -> None:
    with pytest.raises(ValueError, match="one of text, chunks and echo"):
        Reply(text="a", echo=True)
    with pytest.raises(ValueError, match="status"):
        Reply(status=99)
    with pytest.raises(ValueError, match="shares"):
        Faults(rate_429=5)
