"""A worker whose provider fails: A is the `provider` of the settings, B an endpoint of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response

from aiforge.core import completions
from aiforge.core.events import Done, Message, Reset, Started, Token
from aiforge.core.line_bodies import CHAT, RESPONSES
from aiforge.core.pricing import PRICE_LIST
from aiforge.core.types import RequestRefusedError, UnavailableError, Usage
from aiforge.testing import Cut, FakeProvider, Gate, Reply, failure
from tests.aiforge.chat.support import ListRecorder
from tests.support.gates import Sides
from tests.support.runners import LocalWorker, library
from tests.support.turns import read, submit
from tests.worker.test_gate import sides
from worker.contract.batch.batches import Slice
from worker.contract.batch.line_schemas import Endpoint, LineItem
from worker.contract.calls.providers import FAILURES
from worker.contract.client import TurnClient
from worker.contract.schemas import BatchItem, BatchRequest, TurnRequest, TurnState
from worker.running.specs import Specs

pytestmark = pytest.mark.anyio

__all__ = ["sides"]

OWN = {"b/model-b": {"input": 2, "output": 4}}


@pytest.fixture
def backup() -> Iterator[FakeProvider]:
    with FakeProvider(api_key="sk-b") as fake:
        yield fake


def to(backup: FakeProvider, code: str = "*", **more: object) -> dict[str, Any]:
    return {
        "ENDPOINTS": {"b": {"base_url": backup.url, "api_key": "sk-b"}},
        "FALLBACKS": {code: ["b/model-b"]},
        "MODELS": OWN,
        "MAX_RETRIES": 0,
        **more,
    }


async def test_the_second_answer_alone_is_the_answer(
    client: TurnClient, provider: FakeProvider, backup: FakeProvider
) -> None:
    """The provider dies after chunk 3: readers forget that, and nothing of it is stored."""
    provider.push(Reply(chunks=["Half ", "an ", "ans", Cut("reset")]))
    backup.push("B answers in full.")
    place = await submit(client, conversation_id="c")
    async with LocalWorker(client, provider, **to(backup)) as worker:
        await worker.turns.run(place.turn_id)
    events = [event for _, event in await read(client, place)]
    assert [event.attempt for event in events if isinstance(event, Started)] == [1]
    (at,) = (number for number, event in enumerate(events) if isinstance(event, Reset))
    assert events[at] == Reset(1)
    before, after = ([e.text for e in part if isinstance(e, Token)] for part in (events[:at], events[at:]))
    assert before == ["Half ", "an ", "ans"]
    assert "".join(after) == "B answers in full."
    assert events[-2:] == [Message("B answers in full."), Done()]
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.answer, turn.model) == (TurnState.COMPLETED, "B answers in full.", "model-b")
    assert [message.content for message in await client.messages("c")] == ["Hello?", "B answers in full."]
    a, b = sorted(await client.turns.calls(place.turn_id), key=lambda call: call.outcome)
    assert (a.provider, a.model, a.outcome, a.error_code) == (
        "openai", "gpt-4o-mini", "error", "provider_stream_cut",
    )  # fmt: skip
    assert (b.provider, b.model, b.outcome, b.price_list) == ("b", "model-b", "ok", "own")
    assert a.price_list == PRICE_LIST
    assert a.cost
    assert b.cost
    assert b.usage is not None
    assert b.cost == (2 * b.usage.input_tokens + 4 * b.usage.output_tokens) * Decimal("0.000001")
    assert turn.cost == a.cost + b.cost


async def test_a_turn_whose_routes_all_fail_keeps_nothing(
    client: TurnClient, provider: FakeProvider, backup: FakeProvider
) -> None:
    provider.push(Reply(chunks=["Half ", Cut("reset")]))
    backup.push(Reply(chunks=["B goes on", Cut("reset")]))
    place = await submit(client, conversation_id="c")
    async with LocalWorker(client, provider, **to(backup)) as worker:
        await worker.turns.run(place.turn_id)
    turn = await client.turn(place.turn_id)
    assert turn.error is not None
    assert (turn.state, turn.error.code) == (TurnState.FAILED, "provider_stream_cut")
    assert await client.messages("c") == []


async def test_a_turn_that_is_cancelled_after_a_reset_keeps_what_was_seen_since(
    client: TurnClient, provider: FakeProvider, backup: FakeProvider
) -> None:
    provider.push(Reply(chunks=["Half ", Cut("reset")]))
    backup.push(Reply(chunks=["B goes on", Gate("never")]))
    place = await submit(client, conversation_id="c")
    async with LocalWorker(client, provider, **to(backup)) as worker:
        running = worker.start(place.turn_id)
        async for _, event in client.events(place.turn_id):
            if event == Token("B goes on"):
                break
        worker.leases.stop(place.turn_id, "cancelled")
        await running
    assert [message.content for message in await client.messages("c")] == ["Hello?", "B goes on"]


async def test_a_named_model_is_not_given_up_unless_the_setting_says_so(
    client: TurnClient, provider: FakeProvider, backup: FakeProvider
) -> None:
    provider.push(failure(503), failure(503))
    backup.push("B answers.")
    turns = [await client.submit(TurnRequest(message="Hello?", model="gpt-4o")) for _ in range(2)]
    async with LocalWorker(client, provider, **to(backup)) as worker:
        await worker.turns.run(turns[0].turn_id)
    async with LocalWorker(client, provider, **to(backup, FALLBACK_NAMED=True)) as worker:
        await worker.turns.run(turns[1].turn_id)
    assert (await client.turn(turns[0].turn_id)).state is TurnState.FAILED
    turn = await client.turn(turns[1].turn_id)
    assert (turn.answer, turn.model) == ("B answers.", "model-b")
    assert [call.model for call in provider.calls] == ["gpt-4o", "gpt-4o"]
    assert len(backup.calls) == 1


async def test_an_open_circuit_is_not_waited_for(
    sides: Sides, provider: FakeProvider, backup: FakeProvider
) -> None:
    one = await sides(provider=provider, pause=60)
    await one.fail(UnavailableError("down", status=500), times=FAILURES)
    await one.gate.settle()
    backup.push("B answers at once.")
    place = await submit(one.client)
    more = to(backup, "provider_unavailable")
    async with LocalWorker(one.client, provider, gate=one.gate, **more) as worker:
        await worker.turns.run(place.turn_id)
    assert (await one.client.turn(place.turn_id)).answer == "B answers at once."
    assert not provider.calls
    (call,) = await one.client.turns.calls(place.turn_id)
    assert (call.provider, call.model, call.outcome) == ("b", "model-b", "ok")
    names = {health.name for health in await one.providers.all()}
    assert all("b/" not in name or "@" not in name for name in names), "B is not where A is"


async def test_an_item_falls_back(client: TurnClient, provider: FakeProvider, backup: FakeProvider) -> None:
    provider.push(failure(503))
    backup.push("B answers.")
    batch = await client.submit_batch(
        BatchRequest(items=[BatchItem(message="one"), BatchItem(message="two")])
    )
    async with LocalWorker(client, provider, **to(backup)) as worker:
        while (await client.batch(batch.batch_id)).state == "in_progress":
            await worker.slices.run(batch.batch_id)
    rows = await client.results(batch.batch_id)
    assert [(row.status, row.model, row.attempts) for row in rows] == [
        ("ok", "model-b", 2),
        ("ok", "gpt-4o-mini", 1),
    ]
    done = await client.batch(batch.batch_id)
    assert done.cost == sum((row.cost or 0 for row in rows), Decimal(0))


BODY = (
    '{"model": "gpt-4o",  "messages": [{"role": "user", "content": "Hi"}], "top_p": 0.10000000000000000001}'
)


def line(
    provider: FakeProvider, body: str = BODY, endpoint: Endpoint = CHAT, **more: object
) -> completions.Request:
    defaults = BatchRequest(items=[], endpoint=endpoint)
    taken = Slice("batch_00" + "0" * 20, 0, 1, False, 0.0, "t", defaults, [], "default")
    return Specs(library(provider, **more)).of_line(
        taken, LineItem(id="one", body=msgspec.Raw(body.encode()))
    )


async def test_a_line_falls_back_with_its_own_body(provider: FakeProvider, backup: FakeProvider) -> None:
    """Of the body nothing but the model's name is another."""
    provider.push(failure(503))
    backup.push("B answers.")
    recorder = ListRecorder()
    said = await completions.answer(line(provider, **to(backup, FALLBACK_NAMED=True)), recorder)
    assert (said.status, said.failure) == (200, None)
    assert json.loads(said.body)["choices"][0]["message"]["content"] == "B answers."
    assert [(call.provider, call.model, call.outcome, call.price_list) for call in recorder.settled] == [
        ("openai", "gpt-4o", "error", PRICE_LIST),
        ("b", "model-b", "ok", "own"),
    ]
    (asked,) = backup.calls
    assert asked.body == {**json.loads(BODY), "model": "model-b"}


RESPONSE_BODY = (
    '{"model": "gpt-4o",  "input": "Hi", "reasoning": {"effort": "low"}, "top_p": 0.10000000000000000001}'
)
GIVEN_UP = '{"object": "response", "status": "failed", "error": {"code": "server_error"}}'


@pytest.mark.parametrize(
    ("wrong", "code", "kept"),
    [
        (failure(503), "*", False),
        (failure(503), "provider_unavailable", False),
        (failure(503), "rate_limited", True),
        (failure(400), "*", True),
        (failure(400), "provider_error", False),
        (
            Reply(body='{"object": "response", "status": "failed", "error": {"code": "server_error"}}'),
            "*",
            False,
        ),
        (Reply(body=GIVEN_UP.replace("server_error", "rate_limit_exceeded")), "rate_limited", False),
    ],
)
async def test_a_line_for_a_response_falls_back_by_the_error(
    provider: FakeProvider, backup: FakeProvider, wrong: Reply, code: str, kept: bool
) -> None:
    provider.push(wrong)
    backup.push("B answers.")
    recorder = ListRecorder()
    asked = line(provider, RESPONSE_BODY, RESPONSES, **to(backup, code, FALLBACK_NAMED=True))
    said = await completions.answer(asked, recorder)
    assert len(backup.calls) == (not kept)
    if kept:
        assert said.failure is not None
        return
    response = Response.model_validate_json(said.body)
    assert (said.status, response.output_text, response.model) == (200, "B answers.", "model-b")
    assert [(call.model, call.outcome) for call in recorder.settled] == [
        ("gpt-4o", "error"),
        ("model-b", "ok"),
    ]
    (call,) = backup.calls
    assert (call.path, call.body) == (RESPONSES, {**json.loads(RESPONSE_BODY), "model": "model-b"})


async def test_a_line_for_a_response_goes_to_a_tier(provider: FakeProvider) -> None:
    provider.push(failure(503), "The tier answers.")
    own = {
        "good": {"input": 2, "output": 4, "quality": "high"},
        "cheap": {"input": 0.001, "output": 0.001, "quality": "low"},
    }
    more = {"FALLBACKS": {"*": ["tier:low"]}, "MODELS": own, "MAX_RETRIES": 0, "FALLBACK_NAMED": True}
    asked = line(provider, RESPONSE_BODY.replace("gpt-4o", "good"), RESPONSES, **more)
    said = await completions.answer(asked, ListRecorder())
    assert Response.model_validate_json(said.body).output_text == "The tier answers."
    assert [call.model for call in provider.calls] == ["good", "cheap"]


async def test_a_line_for_a_response_falls_back_to_who_speaks_otherwise(provider: FakeProvider) -> None:
    """What that one cannot be given is its failure, by name."""
    provider.push(failure(503), failure(503))
    more = {"FALLBACKS": {"*": ["offline/offline"]}, "MAX_RETRIES": 0, "FALLBACK_NAMED": True}
    plain = '{"model": "gpt-4o", "input": [{"role": "user", "content": "Hi"}], "instructions": "Be kind."}'
    said = await completions.answer(line(provider, plain, RESPONSES, **more), ListRecorder())
    response = Response.model_validate_json(said.body)
    assert (response.model, response.instructions, response.status) == ("offline", "Be kind.", "completed")
    with pytest.raises(RequestRefusedError, match="reasoning: provider 'offline' cannot be given"):
        await completions.answer(line(provider, RESPONSE_BODY, RESPONSES, **more), ListRecorder())


async def test_a_line_names_its_model_so_it_is_kept(provider: FakeProvider, backup: FakeProvider) -> None:
    provider.push(failure(503))
    said = await completions.answer(line(provider, **to(backup)), ListRecorder())
    assert said.status == 503
    assert not backup.calls


async def test_a_line_whose_routes_all_fail_has_the_last_ones_answer(
    provider: FakeProvider, backup: FakeProvider
) -> None:
    provider.push(failure(503))
    backup.push(failure(401))
    recorder = ListRecorder()
    said = await completions.answer(line(provider, **to(backup, FALLBACK_NAMED=True)), recorder)
    assert (said.status, [call.usage for call in recorder.settled]) == (401, [Usage(), Usage()])
