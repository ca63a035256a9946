"""The provider's `/v1/responses`, seen through OpenAI's own client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseFunctionToolCall

from aiforge.core.types import Usage
from aiforge.testing import Fail, FakeProvider, Reply, ToolCall, rate_limited

pytestmark = pytest.mark.anyio

USAGE = Usage(input_tokens=11, output_tokens=7, cached_tokens=3, reasoning_tokens=2)


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider() as running:
        yield running


@pytest.fixture
async def client(provider: FakeProvider) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=provider.url, api_key="none", max_retries=0) as made:
        yield made


async def test_a_whole_response_is_one_of_openais(client: openai.AsyncOpenAI, provider: FakeProvider) -> None:
    provider.push(Reply(text="Hello there", usage=USAGE))
    said = await client.responses.create(
        model="m", input="Hi", instructions="Be short.", temperature=0.5, metadata={"a": "b"}
    )
    Response.model_validate(said.model_dump(by_alias=True))
    assert (said.output_text, said.status, said.incomplete_details) == ("Hello there", "completed", None)
    assert (said.instructions, said.temperature, said.metadata) == ("Be short.", 0.5, {"a": "b"})
    assert said.usage is not None
    assert (said.usage.input_tokens, said.usage.output_tokens, said.usage.total_tokens) == (11, 7, 18)
    assert said.usage.input_tokens_details.cached_tokens == 3
    assert said.usage.output_tokens_details.reasoning_tokens == 2
    (call,) = provider.calls
    assert (call.path, call.question, call.reported) == ("/v1/responses", "Hi", USAGE)


async def test_an_answer_that_is_too_long_is_incomplete(client: openai.AsyncOpenAI) -> None:
    said = await client.responses.create(model="m", input="Hi", max_output_tokens=5)
    assert said.status == "incomplete"
    assert said.incomplete_details is not None
    assert said.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_of_functions_are_items(
    client: openai.AsyncOpenAI, provider: FakeProvider, stream: bool
) -> None:
    calls = [ToolCall("add", {"a": 1}, id="x"), ToolCall("now", {}, id="y")]
    provider.push(Reply(text="Let me see", tool_calls=calls))
    said = await _said(client, stream, input=[{"role": "user", "content": "Hi"}])
    made = [item for item in said.output if isinstance(item, ResponseFunctionToolCall)]
    assert [(call.call_id, call.name, call.arguments) for call in made] == [
        ("x", "add", '{"a":1}'),
        ("y", "now", "{}"),
    ]
    assert said.output_text == "Let me see"


async def _said(client: openai.AsyncOpenAI, stream: bool, **request: Any) -> Response:
    if not stream:
        made: Response = await client.responses.create(model="m", **request)
        return made
    async with client.responses.stream(model="m", **request) as events:
        async for _ in events:
            pass
        return await events.get_final_response()


async def test_a_stream_is_openais_events_in_order(
    client: openai.AsyncOpenAI, provider: FakeProvider
) -> None:
    provider.push(Reply(text="Hello there", usage=USAGE))
    events = [event async for event in await client.responses.create(model="m", input="Hi", stream=True)]
    assert [event.type.removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event.sequence_number for event in events] == list(range(10))
    last: Any = events[-1]
    assert (last.response.output_text, last.response.usage.total_tokens) == ("Hello there", 18)


async def test_an_error_in_the_stream_is_an_event(client: openai.AsyncOpenAI, provider: FakeProvider) -> None:
    provider.push(Reply(chunks=["Hel", Fail("broken", "server_error")]))
    events = [event async for event in await client.responses.create(model="m", input="Hi", stream=True)]
    last: Any = events[-1]
    assert (last.type, last.code, last.message) == ("error", "server_error", "broken")


async def test_scripts_and_faults_hold_for_both_endpoints(
    client: openai.AsyncOpenAI, provider: FakeProvider
) -> None:
    provider.push(rate_limited(1))
    provider.when("weather", "Sunny.")
    with pytest.raises(openai.RateLimitError):
        await client.responses.create(model="m", input="Hi")
    parts: Any = [{"role": "user", "content": [{"type": "input_text", "text": "the weather?"}]}]
    assert (await client.responses.create(model="m", input=parts)).output_text == "Sunny."


@pytest.mark.parametrize(
    ("more", "param"),
    [({"previous_response_id": "resp_1"}, "previous_response_id"), ({"background": True}, "background")],
)
async def test_what_it_cannot_do_is_refused(
    client: openai.AsyncOpenAI, more: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model="m", input="Hi", **more)
    assert refused.value.param == param
