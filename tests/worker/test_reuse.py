"""Answers of earlier batches: taken by batches that ask for them, whole ones only, each asked for once."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from aiforge.core.types import Usage
from aiforge.testing import FakeProvider, Gate, Reply, ToolCall, failure
from tests.support.runners import LocalWorker
from tests.support.turns import Connect
from tests.support.waiting import eventually
from worker import metrics
from worker.contract.client import TurnClient
from worker.contract.schemas import BATCH_OVER, Batch, BatchItem, BatchRequest, Caller

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Where is it?"}]


async def post(client: TurnClient, *messages: str, **more: Any) -> Batch:
    items = [BatchItem(message=text, id=f"id-{number}") for number, text in enumerate(messages)]
    return await client.submit_batch(BatchRequest(items=items, **{"cache_ttl": 3_600, **more}))


async def post_lines(client: TurnClient, *bodies: dict[str, Any], **more: Any) -> Batch:
    upload = await client.files.begin("default", "q.jsonl", "batch")
    endpoint = more.get("endpoint", CHAT)
    for number, body in enumerate(bodies):
        line = {"custom_id": f"id-{number}", "method": "POST", "url": endpoint, "body": body}
        await upload.write(json.dumps(line).encode() + b"\n")
    file = await upload.seal()
    options = {"endpoint": endpoint, "completion_window": "24h", "cache_ttl": 3_600, **more}
    return await client.submit_batch(BatchRequest(input_file_id=file.file_id, **options))


async def run(client: TurnClient, worker: LocalWorker, batch: Batch) -> Batch:
    while (batch := await client.batch(batch.batch_id)).state not in BATCH_OVER:
        await worker.slices.run(batch.batch_id)
    return batch


async def calls(client: TurnClient, batch: Batch) -> list[str]:
    return [call.outcome for call in await client.turns.calls(batch.batch_id)]


async def lookups(found: str) -> float:
    return float(metrics.REGISTRY.get_sample_value("aiforge_answer_lookups_total", {"found": found}) or 0)


async def test_a_later_batch_takes_what_an_earlier_one_was_answered(
    client: TurnClient, provider: FakeProvider
) -> None:
    before = await lookups("kept")
    async with LocalWorker(client, provider) as worker:
        first = await run(client, worker, await post(client, "a", "b", "a"))
        second = await run(client, worker, await post(client, "c", "b", "a"))
    assert [call.question for call in provider.calls] == ["a", "b", "c"]
    assert (first.saved_calls, second.saved_calls, second.completed) == (1, 2, 3)
    asked, *taken = await client.results(second.batch_id)
    earlier = await client.results(first.batch_id)
    assert [row.answer for row in taken] == [earlier[1].answer, earlier[0].answer]
    assert [row.id for row in taken] == ["id-1", "id-2"]
    for row in taken:
        assert (row.cached, row.cost, row.usage, row.attempts) == (True, Decimal(0), None, 0)
        assert (row.model, row.deduplicated) == ("gpt-4o-mini", None)
    assert (asked.cached, asked.attempts) == (False, 1)
    assert second.cost == asked.cost
    assert await calls(client, second) == ["ok"], "the ledger has no row for what was not asked"
    totals = (await client.stats()).totals
    assert sum(sums.get("usd", 0) for sums in totals.values()) == first.cost + second.cost
    used = sum((call.reported for call in provider.calls if call.reported), Usage())
    assert first.usage.output_tokens + second.usage.output_tokens == used.output_tokens
    assert await lookups("kept") == before + 2


async def test_only_batches_that_ask_for_it_read_and_keep(client: TurnClient, provider: FakeProvider) -> None:
    async with LocalWorker(client, provider) as worker:
        for cache_ttl in (None, 60, None, 60):
            await run(client, worker, await post(client, "a", cache_ttl=cache_ttl, temperature=0))
    assert len(provider.calls) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"system_prompt": "Be brief."},
        {"model": "gpt-4o"},
        {"temperature": 0.5},
        {"max_tokens": 700},
        {"tools": ["current_time"]},
    ],
)
async def test_what_decides_the_answer_asks_anew(
    client: TurnClient, provider: FakeProvider, other: dict[str, Any]
) -> None:
    async with LocalWorker(client, provider) as worker:
        await run(client, worker, await post(client, "a"))
        await run(client, worker, await post(client, "a", metadata={"run": "2"}))
        assert len(provider.calls) == 1
        await run(client, worker, await post(client, "a", **other))
        assert len(provider.calls) == 2
        await run(client, worker, await post(client, "a", **other))
    assert len(provider.calls) == 2


async def test_each_tenant_has_its_own(client: TurnClient, provider: FakeProvider) -> None:
    request = BatchRequest(items=[BatchItem(message="a")], cache_ttl=60)
    async with LocalWorker(client, provider) as worker:
        for tenant in ("one", "other", "one"):
            batch = await client.of(Caller(tenant)).submit_batch(request)
            while (await client.of(Caller(tenant)).batch(batch.batch_id)).state not in BATCH_OVER:
                await worker.slices.run(batch.batch_id)
    assert len(provider.calls) == 2


@pytest.mark.parametrize(
    "said",
    [
        failure(400),
        Reply(text="Half of", finish_reason="length"),
        Reply(text="I would", finish_reason="content_filter"),
    ],
)
async def test_no_failure_and_no_half_an_answer_is_kept(
    client: TurnClient, provider: FakeProvider, said: Reply
) -> None:
    provider.when("a", said)
    provider.when("Where", said)
    async with LocalWorker(client, provider) as worker:
        for _ in range(2):
            await run(client, worker, await post(client, "a"))
            await run(client, worker, await post_lines(client, {"model": "m", "messages": MESSAGES}))
    assert len(provider.calls) == 4


@pytest.mark.parametrize(
    ("endpoint", "asked", "said"),
    [
        (
            CHAT,
            {"messages": MESSAGES},
            {"choices": [{"finish_reason": "stop", "message": {"content": None, "refusal": "No."}}]},
        ),
        (
            "/v1/responses",
            {"input": "Where is it?"},
            {"status": "completed", "output": [{"content": [{"type": "refusal", "refusal": "No."}]}]},
        ),
    ],
)
async def test_a_refusal_is_not_kept(
    client: TurnClient, provider: FakeProvider, endpoint: str, asked: dict[str, Any], said: dict[str, Any]
) -> None:
    provider.when("Where", Reply(body=json.dumps(said)))
    async with LocalWorker(client, provider) as worker:
        for _ in range(2):
            posted = await post_lines(client, {"model": "m", **asked}, endpoint=endpoint)
            assert (await run(client, worker, posted)).completed == 1
    assert len(provider.calls) == 2


@pytest.mark.parametrize("choices", ["Hello.", {"0": 1}, [{"finish_reason": "stop", "message": None}], [7]])
async def test_an_answer_in_another_form_is_passed_on_and_not_kept(
    client: TurnClient, provider: FakeProvider, choices: Any
) -> None:
    provider.when("Where", Reply(body=json.dumps({"choices": choices})))
    async with LocalWorker(client, provider) as worker:
        for _ in range(2):
            batch = await run(client, worker, await post_lines(client, {"model": "m", "messages": MESSAGES}))
            (row,) = await client.results(batch.batch_id)
            assert row.response is not None
            assert json.loads(bytes(row.response.body)) == {"choices": choices}
    assert len(provider.calls) == 2


async def test_a_tool_round_that_hit_its_limit_is_not_kept(
    client: TurnClient, provider: FakeProvider
) -> None:
    provider.when("a", Reply(tool_calls=[ToolCall("current_time", {})]))
    async with LocalWorker(client, provider) as worker:
        for _ in range(2):
            batch = await run(client, worker, await post(client, "a", tools=["current_time"]))
    assert batch.saved_calls == 0


async def test_what_a_fallback_has_said_is_not_kept(client: TurnClient, provider: FakeProvider) -> None:
    provider.when("a", failure(503), times=1)
    async with LocalWorker(client, provider, FALLBACKS={"*": ["gpt-4o"]}, MAX_RETRIES=0) as worker:
        batches = [await run(client, worker, await post(client, "a")) for _ in range(2)]
    assert [batch.saved_calls for batch in batches] == [0, 0]


@pytest.mark.parametrize("endpoint", [CHAT, "/v1/responses"])
async def test_lines_of_files_are_kept_as_they_were_written(
    client: TurnClient, provider: FakeProvider, endpoint: str
) -> None:
    asked = {"messages": MESSAGES} if endpoint == CHAT else {"input": "Where is it?"}
    body, limit = {"model": "m", **asked, "temperature": 0.3}, "max_completion_tokens"
    short = {**body, (limit if endpoint == CHAT else "max_output_tokens"): 2}
    async with LocalWorker(client, provider, PROVIDER="offline", MODEL="m") as worker:
        first = await run(client, worker, await post_lines(client, body, short, endpoint=endpoint))
        second = await run(client, worker, await post_lines(client, short, body, endpoint=endpoint))
    assert (first.completed, second.completed, second.saved_calls) == (2, 2, 1)
    row = (await client.results(first.batch_id))[0]
    cut, taken = await client.results(second.batch_id)
    assert taken.response is not None
    assert row.response is not None
    assert bytes(taken.response.body) == bytes(row.response.body)
    assert (cut.cached, taken.cached, taken.id, taken.cost) == (False, True, "id-1", Decimal(0))


async def test_a_line_that_a_provider_wrote_is_kept_word_for_word(
    client: TurnClient, provider: FakeProvider
) -> None:
    said = "one\u2028two\u2029three\u0085four\r\nfive \U0001f600"
    provider.when("Where", Reply(text=said))
    async with LocalWorker(client, provider) as worker:
        for model in ("gpt-4o-mini", "gpt-4o-mini", "gpt-4o"):
            body = {"model": model, "messages": MESSAGES}
            batch = await run(client, worker, await post_lines(client, body))
            assert batch.output_file_id is not None
            file = b"".join([piece async for piece in client.files.read(batch.output_file_id, "default")])
            (line,) = file.decode().splitlines()
            assert json.loads(line)["response"]["body"]["choices"][0]["message"]["content"] == said
    assert len(provider.calls) == 2


async def test_a_batch_waits_for_what_another_asks(connect: Connect, provider: FakeProvider) -> None:
    client = await connect(lease_seconds=1.0)
    provider.when("a", Reply(chunks=["yes", Gate("go")]))
    before = await lookups("waited")
    async with LocalWorker(client, provider) as worker:
        first, second = await post(client, "a"), await post(client, "a")
        one = worker.start_slice(first.batch_id)
        await provider.wait_until_async(lambda: len(provider.calls) == 1)
        other = worker.start_slice(second.batch_id)
        held = client.batches.keys

        async def is_renewed() -> bool:
            """Longer than a lease."""
            now = await client.connection.command("TIME")
            names = [held.batch(batch.batch_id) for batch in (first, second)]
            started = await client.connection.commands([("HGET", name, "started_at") for name in names])
            return None not in started and int(now[0]) * 1000 - max(map(int, started)) > 1_500

        await eventually(is_renewed, 20)
        assert not other.done()
        provider.open("go")
        await one
        await other
    assert len(provider.calls) == 1
    saved = [(await client.batch(batch.batch_id)).saved_calls for batch in (first, second)]
    assert sorted(saved) == [0, 1]
    assert await lookups("waited") == before + 1


async def test_when_the_first_fails_the_second_asks(client: TurnClient, provider: FakeProvider) -> None:
    provider.when("a", Reply(status=400, delay=0.3), times=1)
    async with LocalWorker(client, provider) as worker:
        first, second = await post(client, "a"), await post(client, "a")
        one = worker.start_slice(first.batch_id)
        await provider.wait_until_async(lambda: len(provider.calls) == 1)
        other = worker.start_slice(second.batch_id)
        await one
        await other
    completed = [(await client.batch(batch.batch_id)).completed for batch in (first, second)]
    assert (sorted(completed), len(provider.calls)) == ([0, 1], 2)


async def test_who_lets_go_of_a_slice_lets_others_ask(client: TurnClient, provider: FakeProvider) -> None:
    provider.when("a", Reply(chunks=["x", Gate("never")]), times=1)
    first, second = await post(client, "a"), await post(client, "a")
    async with LocalWorker(client, provider) as worker:
        running = worker.start_slice(first.batch_id)
        await provider.wait_until_async(lambda: len(provider.calls) == 1)
        worker.leases.stop_all("handed_back")
        await running
    async with LocalWorker(client, provider) as worker:
        ended = [await run(client, worker, batch) for batch in (first, second)]
    assert sorted((batch.completed, batch.saved_calls) for batch in ended) == [(1, 0), (1, 1)]
    assert len(provider.calls) == 2
    made = [outcome for batch in ended for outcome in await calls(client, batch)]
    assert sorted(made) == ["aborted", "ok"], "what was looked up is no call"


async def test_erased_answers_are_asked_for_again(client: TurnClient, provider: FakeProvider) -> None:
    async with LocalWorker(client, provider) as worker:
        for _ in range(2):
            await run(client, worker, await post(client, "a"))
        assert await client.forget_answers() == 1
        await run(client, worker, await post(client, "a"))
    assert len(provider.calls) == 2
