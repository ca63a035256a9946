"""Batches that come as files, through OpenAI's own client: upload, create, poll, download."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import openai
import pytest
from openai.types import Batch

from aiforge.testing import FakeProvider, Reply, failure
from tests.api.conftest import Api, Start
from tests.support.runners import LocalWorker
from tests.support.waiting import eventually
from worker.contract.client import TurnClient

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"


@pytest.fixture
def provider() -> Any:
    with FakeProvider() as running:
        yield running


@pytest.fixture
async def client(api: Api) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def worker(api: Api, provider: FakeProvider) -> AsyncIterator[LocalWorker]:
    async with LocalWorker(api.store, provider) as made:
        yield made


def line(number: int, text: str | None = None, *, url: str = CHAT, **more: Any) -> str:
    asked = [{"role": "user", "content": f"question {number}." if text is None else text}]
    body = {"model": "gpt-4o-mini", "messages": asked, **more}
    return json.dumps(
        {"custom_id": f"id-{number}", "method": "POST", "url": url, "body": body}, ensure_ascii=False
    )


async def create(client: openai.AsyncOpenAI, data: str | bytes, **more: Any) -> Batch:
    content = data.encode() if isinstance(data, str) else data
    file = await client.files.create(file=("questions.jsonl", content), purpose="batch")
    options: dict[str, Any] = {"endpoint": CHAT, "completion_window": "24h", **more}
    return await client.batches.create(input_file_id=file.id, **options)


async def run(client: openai.AsyncOpenAI, worker: LocalWorker, batch: Batch) -> Batch:
    """Run a batch to its end; until then it has no files."""
    while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
        assert (batch.output_file_id, batch.error_file_id) == (None, None)
        await worker.slices.run(batch.id)
        batch = await client.batches.retrieve(batch.id)
    return batch


async def rows(client: openai.AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    content = (await client.files.content(file_id)).content
    assert content.endswith(b"\n")
    return [json.loads(one) for one in content.decode().splitlines()]


def counts(batch: Batch) -> tuple[int, int, int]:
    assert batch.request_counts is not None
    return batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed


async def test_a_file_from_end_to_end(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider
) -> None:
    provider.when("question", Reply(echo=True))
    lines = [line(number, seed=number, response_format={"type": "text"}) for number in range(12)]
    batch = await create(client, "\n".join(lines), metadata={"run": "nightly"})
    assert (batch.status, batch.endpoint, batch.completion_window) == ("validating", CHAT, "24h")
    assert batch.expires_at is not None
    assert batch.expires_at - batch.created_at == 86_400
    done = await run(client, worker, batch)
    assert (done.status, counts(done), done.errors) == ("completed", (12, 12, 0), None)
    assert done.error_file_id is None
    assert done.metadata == {"run": "nightly"}
    assert None not in (done.in_progress_at, done.finalizing_at, done.completed_at)
    found = await rows(client, done.output_file_id)
    assert [row["custom_id"] for row in found] == [f"id-{number}" for number in range(12)]
    assert len({row["id"] for row in found}) == 12
    for number, row in enumerate(found):
        assert (row["response"]["status_code"], row["error"]) == (200, None)
        (choice,) = row["response"]["body"]["choices"]
        assert json.loads(choice["message"]["content"])[0]["content"] == f"question {number}."
    assert [call.body["seed"] for call in provider.calls] == list(range(12))
    assert (await client.files.retrieve(str(done.output_file_id))).purpose == "batch_output"


async def test_a_refused_line_stands_in_the_error_file(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider
) -> None:
    provider.when("question 7.", failure(400))
    done = await run(client, worker, await create(client, "\n".join(map(line, range(10)))))
    assert (done.status, counts(done)) == ("completed", (10, 9, 1))
    assert len(await rows(client, done.output_file_id)) == 9
    (row,) = await rows(client, done.error_file_id)
    assert (row["custom_id"], row["response"]["status_code"]) == ("id-7", 400)
    assert row["response"]["body"]["error"]["message"]
    assert row["error"] is None


async def test_an_answer_that_ends_in_half_a_character_is_one(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider
) -> None:
    body = r'{"choices": [{"index": 0, "finish_reason": "length", "message": {"content": "cut \ud83d"}}]}'
    provider.when("question", Reply(body=body))
    done = await run(client, worker, await create(client, line(1)))
    (row,) = await rows(client, done.output_file_id)
    assert row["response"]["body"]["choices"][0]["message"]["content"] == "cut \ufffd"


@pytest.mark.parametrize("error", ["overloaded", {"message": "overloaded", "code": "overloaded_error"}])
async def test_a_reply_that_holds_nothing_but_an_error_is_no_answer(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider, error: object
) -> None:
    provider.when("question 1.", Reply(body=json.dumps({"error": error})))
    done = await run(client, worker, await create(client, f"{line(1)}\n{line(2)}"))
    assert counts(done) == (2, 1, 1)
    (row,) = await rows(client, done.error_file_id)
    assert (row["custom_id"], row["response"]["body"]) == ("id-1", {"error": error})


async def test_when_every_line_is_refused_there_is_no_output(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider
) -> None:
    provider.when("question", failure(400))
    done = await run(client, worker, await create(client, "\n".join(map(line, range(3)))))
    assert (done.status, counts(done), done.output_file_id) == ("completed", (3, 0, 3), None)
    assert len(await rows(client, done.error_file_id)) == 3


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([line(1), line(2), line(1)], (3, "duplicate_custom_id", "custom_id")),
        ([line(1), "{"], (2, "invalid_json_line", None)),
        (["", line(1), "[]"], (3, "invalid_json_line", None)),
        ([line(1).replace("POST", "GET")], (1, "invalid_method", "method")),
        ([line(1, url="/v1/responses")], (1, "mismatched_endpoint", "url")),
        ([line(1)[:-1] + ', "conversation": "a b"}'], (1, "invalid_value", "conversation")),
        ([line(1, model="")], (1, "missing_required_parameter", "body.model")),
        ([line(1, messages=[])], (1, "missing_required_parameter", "body.messages")),
        ([line(1, stream=True)], (1, "invalid_value", "body.stream")),
        ([line(1).replace("id-1", "")], (1, "missing_required_parameter", "custom_id")),
        (["\n"], (None, "empty_file", None)),
    ],
)
async def test_a_wrong_line_fails_the_batch_and_is_named(
    client: openai.AsyncOpenAI,
    worker: LocalWorker,
    provider: FakeProvider,
    lines: Sequence[str],
    wrong: tuple[int | None, str, str | None],
) -> None:
    done = await run(client, worker, await create(client, "\n".join(lines)))
    assert (done.status, len(provider.calls)) == ("failed", 0)
    assert done.failed_at is not None
    assert done.errors is not None
    assert done.errors.data is not None
    (error,) = done.errors.data
    assert (error.line, error.code, error.param) == wrong
    if error.code == "duplicate_custom_id":
        assert "'id-1' stands in line 1" in str(error.message)


async def test_wrong_lines_can_be_left_out(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider
) -> None:
    data = "\n".join([line(0), "nonsense", line(1), line(0)])
    done = await run(client, worker, await create(client, data, metadata={"on_invalid": "skip"}))
    assert (done.status, counts(done), len(provider.calls)) == ("completed", (4, 2, 2), 2)
    assert [row["custom_id"] for row in await rows(client, done.output_file_id)] == ["id-0", "id-1"]
    wrong = await rows(client, done.error_file_id)
    assert [(row["custom_id"], row["error"]["code"]) for row in wrong] == [
        (None, "invalid_json_line"),
        ("id-0", "duplicate_custom_id"),
    ]
    assert wrong[0]["error"]["message"].startswith("line 2: ")


async def test_texts_come_back_as_they_went_in(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider
) -> None:
    texts = ["a\u2028b", "c\u2029d", "e\x85f", "g\x00h", "🙂 ü", "i\r\nj"]
    provider.when("", Reply(echo=True))
    data = b"\xef\xbb\xbf" + "\r\n".join(line(n, text) for n, text in enumerate(texts)).encode()
    done = await run(client, worker, await create(client, data))
    assert counts(done) == (6, 6, 0)
    found = await rows(client, done.output_file_id)
    said = [json.loads(row["response"]["body"]["choices"][0]["message"]["content"]) for row in found]
    assert [messages[0]["content"] for messages in said] == texts


async def test_cancelling_keeps_what_was_answered(
    client: openai.AsyncOpenAI, worker: LocalWorker, api: Api
) -> None:
    batch = await create(client, "\n".join(map(line, range(10))))
    while counts(await client.batches.retrieve(batch.id))[1] < 4:
        await worker.slices.run(batch.id)
    assert (await client.batches.cancel(batch.id)).status == "cancelling"
    assert (await client.batches.cancel(batch.id)).status == "cancelling"
    done = await run(client, worker, await client.batches.retrieve(batch.id))
    assert done.status == "cancelled"
    assert (await client.batches.cancel(batch.id)).status == "cancelled"
    kept = await rows(client, done.output_file_id)
    assert 4 <= len(kept) <= 5
    left = await rows(client, done.error_file_id)
    assert {row["error"]["code"] for row in left} == {"batch_cancelled"}
    assert len(kept) + len(left) == 10
    finished = await run(client, worker, await create(client, line(0)))
    with pytest.raises(openai.ConflictError, match="completed"):
        await client.batches.cancel(finished.id)


async def test_what_the_window_leaves_undone_has_expired(
    client: openai.AsyncOpenAI, worker: LocalWorker, api: Api
) -> None:
    batch = await create(client, "\n".join(map(line, range(10))), completion_window="2s")
    while counts(await client.batches.retrieve(batch.id))[1] < 3:
        await worker.slices.run(batch.id)
    await eventually(lambda: _expired(api.store, worker, batch.id))
    done = await run(client, worker, await client.batches.retrieve(batch.id))
    assert (done.status, counts(done)[1]) == ("expired", 3)
    assert done.expired_at is not None
    assert len(await rows(client, done.output_file_id)) == 3
    left = await rows(client, done.error_file_id)
    assert [(row["custom_id"], row["error"]["code"]) for row in left] == [
        (f"id-{number}", "batch_expired") for number in range(3, 10)
    ]


async def _expired(store: TurnClient, worker: LocalWorker, batch_id: str) -> bool:
    await worker.reaper.tick()
    return (await store.batch(batch_id)).state == "finalizing"


async def test_only_failed_lines_are_run_again(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider, api: Api
) -> None:
    for number in (1, 4, 6):
        provider.when(f"question {number}.", failure(400), times=1)
    done = await run(client, worker, await create(client, "\n".join(map(line, range(8)))))
    assert counts(done) == (8, 5, 3)
    before = len(provider.calls)
    reply = await api.http.post(f"/v1/batches/{done.id}/retry")
    assert (reply.status_code, reply.json()["status"]) == (200, "in_progress")
    again = await run(client, worker, await client.batches.retrieve(done.id))
    assert (again.status, counts(again), again.error_file_id) == ("completed", (8, 8, 0), None)
    assert len(provider.calls) - before == 3
    assert again.output_file_id != done.output_file_id
    found = await rows(client, again.output_file_id)
    assert [row["custom_id"] for row in found] == [f"id-{number}" for number in range(8)]
    refused = await api.http.post(f"/v1/batches/{done.id}/retry")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "nothing_to_retry")


async def test_what_is_asked_twice_is_answered_once(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider
) -> None:
    lines = [line(number, f"the same {number % 6}", temperature=0) for number in range(10)]
    done = await run(client, worker, await create(client, "\n".join(lines)))
    assert (counts(done), len(provider.calls)) == ((10, 10, 0), 6)
    assert done.model_extra is not None
    assert done.model_extra["saved_calls"] == 4
    found = await rows(client, done.output_file_id)
    assert [row["custom_id"] for row in found] == [f"id-{number}" for number in range(10)]
    bodies = [row["response"]["body"] for row in found]
    assert bodies[6:] == bodies[:4]


async def test_a_key_makes_one_batch(client: openai.AsyncOpenAI, api: Api) -> None:
    body = {"items": ["one", "two"]}
    posted = [
        await api.http.post("/v1/batches", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)
    ]
    assert posted[0].json()["id"] == posted[1].json()["id"]
    assert [reply.headers.get("idempotent-replayed") for reply in posted] == [None, "true"]
    other = await api.http.post("/v1/batches", json={"items": ["x"]}, headers={"Idempotency-Key": "k"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_mismatch")


async def test_batches_are_listed_page_by_page(client: openai.AsyncOpenAI, api: Api) -> None:
    made = [(await api.http.post("/v1/batches", json={"items": ["x"]})).json()["id"] for _ in range(5)]
    page = await client.batches.list(limit=2)
    assert page.has_more
    found = [batch.id async for batch in client.batches.list(limit=2)]
    assert sorted(found) == sorted(made)
    assert (await api.http.delete(f"/v1/batches/{made[0]}")).status_code == 409
    await client.batches.cancel(made[0])
    assert (await api.http.delete(f"/v1/batches/{made[0]}")).json()["deleted"] is True
    assert made[0] not in [batch.id async for batch in client.batches.list()]
    with pytest.raises(openai.NotFoundError):
        await client.batches.retrieve(made[0])


async def test_events_can_be_followed_and_resumed(
    client: openai.AsyncOpenAI, worker: LocalWorker, api: Api
) -> None:
    done = await run(client, worker, await create(client, "\n".join(map(line, range(4)))))
    path = f"/v1/batches/{done.id}/events"
    events = _events((await api.http.get(path)).text)
    assert [name for name, _, _ in events] == ["row"] * 4 + ["done"]
    assert [number for _, number, _ in events[:4]] == [1, 2, 3, 4]
    assert events[0][2]["response"]["status_code"] == 200
    assert events[-1][2]["status"] == "completed"
    later = _events((await api.http.get(path, headers={"Last-Event-ID": "3"})).text)
    assert later == events[3:]
    assert (await api.http.get(path, params={"after": 5})).status_code == 400


async def test_the_events_of_a_deleted_batch_end_as_well(api: Api) -> None:
    path = f"/v1/batches/{(await api.http.post('/v1/batches', json={'items': ['one']})).json()['id']}"
    text = ""
    async with api.http.stream("GET", f"{path}/events") as reply:
        async for chunk in reply.aiter_text():
            if "event: progress" in chunk:
                assert (await api.http.post(f"{path}/cancel")).status_code == 200
                assert (await api.http.delete(path)).status_code == 200
            text += chunk
    name, number, told = _events(text)[-1]
    assert (name, number, path.endswith(told["id"])) == ("done", None, True)
    assert told.get("deleted") or told["status"] == "cancelled", "it was seen between the two"
    assert (await api.http.get(f"{path}/events")).status_code == 404


def _events(text: str) -> list[tuple[str, int | None, Any]]:
    found = []
    for block in text.split("\n\n"):
        fields = dict(part.split(": ", 1) for part in block.split("\n") if part and not part.startswith(":"))
        if fields:
            number = int(fields["id"]) if "id" in fields else None
            found.append((fields["event"], number, json.loads(fields["data"])))
    return found


async def test_a_paused_batch_waits(api: Api, worker: LocalWorker, provider: FakeProvider) -> None:
    batch_id = (await api.http.post("/v1/batches", json={"items": ["one", "two"]})).json()["id"]
    path = f"/v1/batches/{batch_id}"
    assert (await api.http.post(f"{path}/pause")).json()["paused_at"] is not None
    await worker.slices.run(batch_id)
    assert len(provider.calls) == 0
    assert (await api.http.post(f"{path}/resume")).json()["paused_at"] is None
    while (await api.http.get(path)).json()["status"] == "in_progress":
        await worker.slices.run(batch_id)
    refused = await api.http.post(f"{path}/pause")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "batch_not_running")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input_file_id": "file-00" + "0" * 20}, "input_file_id"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"model": "m"}, "model"),
        ({"items": ["x"]}, "input_file_id"),
        ({"metadata": {"on_invalid": "maybe"}}, "metadata.on_invalid"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
    ],
)
async def test_a_wrong_field_is_named(
    client: openai.AsyncOpenAI, api: Api, change: dict[str, Any], param: str
) -> None:
    file = await client.files.create(file=("q.jsonl", line(1).encode()), purpose="batch")
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **change}
    reply = await api.http.post("/v1/batches", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


def said(number: int, conversation: str | None, text: str, **more: Any) -> str:
    whole = json.loads(line(number, text, **more))
    return json.dumps(whole if conversation is None else {"conversation": conversation, **whole})


async def test_lines_continue_conversations_in_order(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider, api: Api
) -> None:
    provider.when("turn", Reply(echo=True))
    lines = [said(number, "ab"[number % 2], f"turn {number}") for number in range(6)]
    done = await run(client, worker, await create(client, "\n".join([*lines, line(6)])))
    assert (done.status, counts(done), done.errors) == ("completed", (7, 7, 0), None)
    found = await rows(client, done.output_file_id)
    assert [row["custom_id"] for row in found] == [f"id-{number}" for number in range(7)]
    body = found[4]["response"]["body"]
    assert (body["object"], body["model"], found[4]["error"]) == ("chat.completion", "gpt-4o-mini", None)
    assert body["usage"]["total_tokens"] > 0
    asked = [turn["content"] for turn in json.loads(body["choices"][0]["message"]["content"])]
    assert [text for text in asked if text.startswith("turn")] == ["turn 0", "turn 2", "turn 4"]
    stored = (await api.http.get("/v1/conversations/b/messages")).json()["data"]
    assert [message["role"] for message in stored] == ["user", "assistant"] * 3
    assert done.model_extra is not None
    usage = (await api.http.get("/v1/usage")).json()
    assert done.model_extra["cost"] == usage["total_cost"]


async def test_a_failed_line_of_a_conversation_is_run_again(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider, api: Api
) -> None:
    provider.when("turn 1", failure(400), times=1)
    lines = [said(number, "a", f"turn {number}") for number in range(3)]
    done = await run(client, worker, await create(client, "\n".join(lines)))
    assert counts(done) == (3, 2, 1)
    (row,) = await rows(client, done.error_file_id)
    assert (row["custom_id"], row["response"], row["error"]["code"]) == ("id-1", None, "provider_refused")
    await api.http.post(f"/v1/batches/{done.id}/retry")
    again = await run(client, worker, await client.batches.retrieve(done.id))
    assert (counts(again), again.error_file_id) == ((3, 3, 0), None)
    stored = (await api.http.get("/v1/conversations/a/messages")).json()["data"]
    asked = [message["content"] for message in stored if message["role"] == "user"]
    assert asked == ["turn 0", "turn 2", "turn 1"]


async def test_a_line_of_a_conversation_can_be_left_out(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider
) -> None:
    lines = [said(0, "a", "turn 0"), said(1, "a", "turn 1", top_p=0.5), said(2, "a", "turn 2")]
    batch = await create(client, "\n".join(lines), metadata={"on_invalid": "skip"})
    done = await run(client, worker, batch)
    assert (counts(done), len(provider.calls)) == ((3, 2, 1), 2)
    (row,) = await rows(client, done.error_file_id)
    assert (row["custom_id"], row["error"]["code"]) == ("id-1", "unsupported_parameter")


async def test_answers_of_an_earlier_batch(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider, api: Api
) -> None:
    extra = {"cache_ttl": 3600}
    for saved in (0, 2):
        batch = await create(client, "\n".join([line(1), line(2)]), extra_body=extra)
        done = await run(client, worker, batch)
        assert done.model_extra is not None
        assert (done.model_extra["cache_ttl"], done.model_extra["saved_calls"]) == (3600, saved)
        assert (done.model_extra["cost"] == "0", len(provider.calls)) == (saved > 0, 2)
    rows = (await api.http.get(f"/v1/batches/{done.id}/results")).text.splitlines()
    assert [json.loads(row)["cached"] for row in rows] == [True, True]
    reply = await api.http.delete("/v1/cache")
    assert (reply.status_code, reply.json()) == (200, {"object": "cache", "deleted": True, "answers": 2})
    again = await run(client, worker, await create(client, line(1), extra_body=extra))
    assert (counts(again), len(provider.calls)) == ((1, 1, 0), 3)


@pytest.mark.parametrize("seconds", [0, -1, 30 * 86_400 + 1])
async def test_how_long_answers_are_kept_has_bounds(api: Api, seconds: int) -> None:
    reply = await api.http.post("/v1/batches", json={"items": ["a"], "cache_ttl": seconds})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "cache_ttl"), reply.text


async def test_another_provider_answers_in_openais_words(start: Start, provider: FakeProvider) -> None:
    api = await start()
    asked = {"model": "offline", "input": "Hello?", "instructions": "Be brief.", "max_output_tokens": 4}
    wrong = {"model": "offline", "input": "Hello?", "top_logprobs": 3}
    data = "\n".join(
        json.dumps({"custom_id": name, "method": "POST", "url": "/v1/responses", "body": body})
        for name, body in (("good", asked), ("wrong", wrong))
    )
    async with (
        LocalWorker(api.store, provider, PROVIDER="offline", MODEL="offline") as worker,
        openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none") as client,
    ):
        batch = await create(client, data, endpoint="/v1/responses", metadata={"on_invalid": "skip"})
        done = await run(client, worker, batch)
        (row,) = await rows(client, done.output_file_id)
        body = row["response"]["body"]
        assert (row["custom_id"], body["object"], body["usage"]["output_tokens"]) == ("good", "response", 4)
        assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        (refused,) = await rows(client, done.error_file_id)
        assert refused["error"]["code"] == "unsupported_parameter"
        assert "top_logprobs" in refused["error"]["message"]


async def test_an_id_of_nothing_is_not_found(client: openai.AsyncOpenAI) -> None:
    for asked in (client.files.retrieve("file-abc123"), client.batches.retrieve("batch_abc123")):
        with pytest.raises(openai.NotFoundError, match="there is none such"):
            await asked


@pytest.mark.parametrize("amount", ["1_000", "\u0661", " 1 ", "1\n", "", "0x1", "Infinity"])
async def test_a_cost_is_in_plain_digits(api: Api, amount: str) -> None:
    reply = await api.http.post("/v1/batches", json={"items": ["x"], "max_cost": amount})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "max_cost")


@pytest.mark.parametrize(("amount", "read"), [("1.50", "1.50"), (2, "2"), (0.25, "0.25"), (".5", "0.5")])
async def test_a_cost_may_be_a_text_or_a_number(api: Api, amount: str | float, read: str) -> None:
    reply = await api.http.post("/v1/batches", json={"items": ["x"], "max_cost": amount})
    assert (reply.status_code, reply.json()["max_cost"]) == (200, read)


async def test_why_nothing_can_be_run_again(
    client: openai.AsyncOpenAI, worker: LocalWorker, api: Api
) -> None:
    failed = await run(client, worker, await create(client, "{}\n"))
    reply = await api.http.post(f"/v1/batches/{failed.id}/retry")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "batch_failed")
    skips = await create(client, "{}\n" + line(1), metadata={"on_invalid": "skip"})
    done = await run(client, worker, skips)
    assert counts(done) == (2, 1, 1)
    reply = await api.http.post(f"/v1/batches/{done.id}/retry")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "nothing_to_retry")
    assert "wrong in themselves" in reply.json()["error"]["message"]
