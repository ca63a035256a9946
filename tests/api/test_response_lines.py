"""Batches whose lines ask `/v1/responses`, through OpenAI's own client, and what lines may ask for at all."""

from __future__ import annotations

import json
from typing import Any, Final

import openai
import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response, ResponseFunctionToolCall

from aiforge.core.line_bodies import NEVER
from aiforge.testing import FakeProvider, Reply, ToolCall, failure, rate_limited
from tests.aiforge.core.test_line_bodies import ASKED, DOCUMENTED, LABELS, NOTHING, READ, SAYS
from tests.api.conftest import Api
from tests.api.test_openai_batches import CHAT, client, counts, create, provider, rows, run, worker
from tests.support.runners import LocalWorker

__all__ = ["client", "provider", "worker"]

pytestmark = pytest.mark.anyio

RESPONSES: Final = "/v1/responses"
SCHEMA: Final = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}
TOOL: Final = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
SHAPES: Final[list[dict[str, Any]]] = [
    {"input": "question 0"},
    {"input": [{"role": "user", "content": "question 1"}]},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "question 2"}]}]},
    {"input": "question 3", "instructions": "Be short.", "temperature": 0.3, "metadata": {"a": "b"}},
    {"input": "question 4", "max_output_tokens": 5},
    {"input": "question 5", "text": {"format": SCHEMA}},
    {"input": "question 6", "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False},
    {"input": "question 7", "reasoning": {"effort": "low"}, "store": False, "user": "u"},
    {
        "input": [
            {"role": "user", "content": "question 8"},
            {"type": "function_call", "call_id": "x", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "x", "output": "3"},
        ]
    },
]


def line(number: int, body: dict[str, Any], url: str = RESPONSES) -> str:
    whole = {
        "custom_id": f"id-{number}",
        "method": "POST",
        "url": url,
        "body": {"model": "gpt-4o-mini", **body},
    }
    return json.dumps(whole)


def file_of(bodies: list[dict[str, Any]], url: str = RESPONSES) -> str:
    return "\n".join(line(number, body, url) for number, body in enumerate(bodies))


async def test_responses_from_end_to_end(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider
) -> None:
    provider.when("question 6", Reply(tool_calls=[ToolCall("add", {"a": 1}, id="x")]))
    batch = await create(client, file_of(SHAPES), endpoint=RESPONSES)
    assert batch.endpoint == RESPONSES
    done = await run(client, worker, batch)
    assert (done.status, counts(done), done.error_file_id) == ("completed", (9, 9, 0), None)
    found = await rows(client, done.output_file_id)
    said = [Response.model_validate(row["response"]["body"]) for row in found]
    assert [(row["custom_id"], row["response"]["status_code"]) for row in found] == [
        (f"id-{number}", 200) for number in range(9)
    ]
    assert all(call.path == RESPONSES for call in provider.calls)
    sent = {call.question: call.body for call in provider.calls}
    assert [sent[f"question {number}"] for number in range(9)] == [
        {"model": "gpt-4o-mini", **body} for body in SHAPES
    ]
    assert said[0].output_text.startswith("About “question 0”")
    assert (said[3].instructions, said[3].temperature, said[3].metadata) == ("Be short.", 0.3, {"a": "b"})
    assert said[4].status == "incomplete"
    assert said[4].incomplete_details is not None
    assert said[4].incomplete_details.reason == "max_output_tokens"
    (call,) = said[6].output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, call.call_id, call.arguments) == ("add", "x", '{"a":1}')
    usages = [one.usage for one in said if one.usage is not None]
    assert len(usages) == 9
    assert sum(usage.input_tokens for usage in usages) == provider.calls.reported.input_tokens
    assert sum(usage.output_tokens for usage in usages) == provider.calls.reported.output_tokens


async def test_failures_of_responses_are_repeated_or_reported(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider
) -> None:
    provider.when("question 1", rate_limited(0.01, form="ms"), times=1)
    provider.when("question 2", failure(400, "No."))
    done = await run(client, worker, await create(client, file_of(SHAPES[:3]), endpoint=RESPONSES))
    assert counts(done) == (3, 2, 1)
    (row,) = await rows(client, done.error_file_id)
    assert (row["custom_id"], row["response"]["status_code"]) == ("id-2", 400)
    assert row["response"]["body"]["error"]["message"] == "No."
    assert len([call for call in provider.calls if call.question == "question 1"]) == 2


async def test_equal_lines_for_responses_are_asked_once(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider
) -> None:
    bodies = [{"input": f"question {number % 2}", "temperature": 0} for number in range(6)]
    done = await run(client, worker, await create(client, file_of(bodies), endpoint=RESPONSES))
    assert (counts(done), len(provider.calls)) == ((6, 6, 0), 2)


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES])
async def test_every_documented_parameter_is_passed_on_or_refused_by_name(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider, endpoint: str
) -> None:
    asked = {name: value for name, value in ASKED[endpoint].items() if name != "model"}
    given = {**SAYS, **LABELS, **READ[endpoint]}
    names = sorted(DOCUMENTED[endpoint] - {*ASKED[endpoint], *NEVER[endpoint], "n"})
    bodies = [{**asked, name: given[name]} for name in names]
    neutral = [{**asked, name: NOTHING[name]} for name in names if name in NOTHING]
    done = await run(
        client, worker, await create(client, file_of(bodies + neutral, endpoint), endpoint=endpoint)
    )
    assert counts(done) == (len(bodies + neutral), len(bodies + neutral), 0)
    sent = [{name: value for name, value in call.body.items() if name != "model"} for call in provider.calls]
    assert all(body in sent for body in bodies + neutral)

    wrong = [{**asked, name: SAYS[name]} for name in NEVER[endpoint]]
    failed = await run(client, worker, await create(client, file_of(wrong, endpoint), endpoint=endpoint))
    assert failed.status == "failed"
    assert failed.errors is not None
    errors = failed.errors.data or []
    assert [(error.code, error.param) for error in errors] == [
        ("invalid_value", f"body.{name}") for name in NEVER[endpoint]
    ]
    assert all(
        f"body.{name}: a line" in str(error.message)
        for error, name in zip(errors, NEVER[endpoint], strict=True)
    )


async def test_several_choices_are_passed_on(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider
) -> None:
    """The fake provider serves one choice, and says so."""
    asked = {**ASKED[CHAT], "n": 3}
    done = await run(client, worker, await create(client, file_of([asked], CHAT)))
    (row,) = await rows(client, done.error_file_id)
    assert row["response"]["body"]["error"]["param"] == "n"
    assert [call.body["n"] for call in provider.calls] == [3]


@pytest.mark.parametrize("endpoint", [CHAT, RESPONSES])
async def test_a_provider_that_speaks_otherwise_answers_in_the_same_words(
    client: openai.AsyncOpenAI, api: Api, provider: FakeProvider, endpoint: str
) -> None:
    asked = {**ASKED[endpoint], "model": "offline"}
    async with LocalWorker(api.store, provider, PROVIDER="offline", MODEL="offline") as worker:
        bodies = [{**asked, **LABELS}, {**asked, "temperature": 0.5}]
        done = await run(client, worker, await create(client, file_of(bodies, endpoint), endpoint=endpoint))
        assert counts(done) == (2, 2, 0)
        for row in await rows(client, done.output_file_id):
            body = row["response"]["body"]
            if endpoint == RESPONSES:
                assert Response.model_validate(body).output_text
            else:
                assert ChatCompletion.model_validate(body).choices[0].message.content
        wrong = [{**asked, "top_p": 0.5}, asked, {**asked, "service_tier": "flex"}]
        failed = await run(client, worker, await create(client, file_of(wrong, endpoint), endpoint=endpoint))
    assert failed.errors is not None
    assert [(error.line, error.code, error.param) for error in failed.errors.data or []] == [
        (1, "unsupported_parameter", "body.top_p"),
        (3, "unsupported_parameter", "body.service_tier"),
    ]
    assert not provider.calls
