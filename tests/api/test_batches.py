"""Batches over HTTP, in the form of OpenAI's batch object."""

from __future__ import annotations

import tracemalloc
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from openai.types import Batch as OpenAIBatch

from aiforge.core.types import ProviderCall, Usage
from tests.api.conftest import Api
from tests.api.worker import COST, USAGE
from tests.support.slices import Sliced, take
from worker.contract.batch.batches import Slice
from worker.contract.claims import new_token
from worker.contract.schemas import BatchItem, BatchRow, TurnFailure

pytestmark = pytest.mark.anyio


async def test_a_posted_batch_is_openais_object(api: Api) -> None:
    reply = await api.http.post(
        "/v1/batches",
        json={"items": [{"message": "one"}, "two"], "metadata": {"run": "nightly"}},
    )

    batch = reply.json()
    assert reply.status_code == 200
    assert reply.headers["location"] == f"/v1/batches/{batch['id']}"
    assert (await api.http.get(reply.headers["location"])).json() == batch
    parsed = OpenAIBatch.model_validate(batch, strict=True)
    assert parsed.status == "in_progress"
    assert parsed.metadata == {"run": "nightly"}
    assert parsed.request_counts is not None
    assert parsed.request_counts.total == 2
    assert (batch["cost"], batch["unpriced_calls"]) == ("0", 0)


async def test_results_are_lines_up_to_the_first_unfinished_item(api: Api) -> None:
    messages = ["one", "two\u2028", "three"]
    batch_id = await _posted(
        api, [{"id": f"q{number}", "message": text} for number, text in enumerate(messages)]
    )
    path = f"/v1/batches/{batch_id}/results"
    assert (await api.http.get(path)).content == b""

    await _finish(api, batch_id)
    reply = await api.http.get(path)
    assert reply.headers["content-type"] == "application/x-ndjson"
    lines = reply.content.split(b"\n")
    assert lines.pop() == b""
    assert reply.text.splitlines() == [line.decode() for line in lines], "one line for every reader"
    rows = [msgspec.json.decode(line) for line in lines]
    assert [(row["index"], row["id"], row["status"]) for row in rows] == [
        (0, "q0", "ok"),
        (1, "q1", "ok"),
        (2, "q2", "error"),
    ]
    assert rows[1]["answer"] == "to two\u2028"
    assert rows[0]["cost"] == "0.0000036"
    assert rows[2]["error"] == {"code": "provider_refused", "message": "no", "retryable": False}

    page = await api.http.get(path, params={"after": 1, "limit": 1})
    assert page.content == lines[1] + b"\n"

    batch = (await api.http.get(f"/v1/batches/{batch_id}")).json()
    parsed = OpenAIBatch.model_validate(batch, strict=True)
    assert parsed.status == "completed"
    assert parsed.completed_at is not None
    assert parsed.usage is not None
    assert parsed.usage.total_tokens == 30
    assert Decimal(batch["cost"]) == 2 * COST


async def test_long_results_take_little_memory(api: Api) -> None:
    """48 MB of answers go through a process that never holds half of them."""
    answer, count = "x" * 1_000_000, 48
    made = await api.http.post("/v1/batches", json={"items": ["question"] * count})
    batch_id = made.json()["id"]
    while isinstance(taken := await take(api.store.batches, batch_id), Sliced):
        for index in taken.items:
            row = BatchRow(index=index, id=None, status="ok", answer=answer)
            await taken.store([row], over=index == taken.items[-1])
    for path in ("results", "events"):
        length = 0
        tracemalloc.start()
        try:
            async with api.http.stream("GET", f"/v1/batches/{batch_id}/{path}") as reply:
                async for chunk in reply.aiter_bytes():
                    length += len(chunk)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert length > count * len(answer)
        assert most < count * len(answer) / 2
    await api.http.delete(f"/v1/batches/{batch_id}")


async def test_a_cancelled_batch_says_so(api: Api) -> None:
    batch_id = await _posted(api, [{"message": "one"}])
    reply = await api.http.post(f"/v1/batches/{batch_id}/cancel")

    assert reply.status_code == 200
    assert reply.json()["status"] in {"cancelling", "cancelled"}
    assert reply.json()["cancelling_at"] is not None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": []}, "items"),
        ({}, "items"),
        ({"items": [{"message": "a"}, {"message": "b", "temprature": 1}]}, "items[1].temprature"),
        ({"items": [{"message": "a"}, {"message": 3}]}, "items[1].message"),
        ({"items": [{"message": "a"}, {"message": ""}]}, "items[1].message"),
        ({"items": [{"message": "a", "id": "x"}, {"message": "b", "id": "x"}]}, "items[1].id"),
        ({"items": [{"message": "a"}], "input_file_id": "file-1"}, "input_file_id"),
    ],
)
async def test_a_wrong_item_is_named(api: Api, body: dict[str, Any], param: str) -> None:
    reply = await api.http.post("/v1/batches", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def _posted(api: Api, items: list[dict[str, Any]]) -> str:
    reply = await api.http.post("/v1/batches", json={"items": items})
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


async def _finish(api: Api, batch_id: str) -> None:
    """Answer every item but the one with the id `q2`."""
    store = api.store.batches
    state = "in_progress"
    while state == "in_progress":
        token = new_token()
        work = await store.claim(batch_id, token, _call("intended"))
        assert isinstance(work, Slice), work
        rows = [
            _row(index, item.id, str(item.message))
            for index, item in work.items
            if isinstance(item, BatchItem)
        ]
        calls = [
            msgspec.structs.replace(
                _call("ok"), call_id=work.call_id(row.index, 1), usage=row.usage or Usage(), cost=row.cost
            )
            for row in rows
        ]
        stored = await store.store(batch_id, work.start, work.fence, rows, calls=calls, over=True)
        state = stored.state


def _row(index: int, name: str | None, message: str) -> BatchRow:
    if name == "q2":
        return BatchRow(index=index, id=name, status="error", error=TurnFailure("provider_refused", "no"))
    return BatchRow(index=index, id=name, status="ok", answer=f"to {message}", usage=USAGE, cost=COST)


def _call(outcome: Any) -> ProviderCall:
    return ProviderCall(call_id="", purpose="answer", provider="openai", model="gpt-4o-mini", outcome=outcome)


async def test_a_batch_that_waits_for_a_budget_says_until_when(api: Api) -> None:
    batch_id = await _posted(api, [{"message": "one"}])
    taken = await api.store.batches.claim(batch_id, new_token(), _call("intended"))
    assert isinstance(taken, Slice)
    await api.store.batches.release(batch_id, taken.start, taken.fence, again_in=3_600)
    told = (await api.http.get(f"/v1/batches/{batch_id}")).json()
    assert 3_500 < told["waits_until"] - told["created_at"] < 3_700
    resumed = (await api.http.post(f"/v1/batches/{batch_id}/resume")).json()
    assert resumed["waits_until"] is None


async def test_the_receipt_of_an_erasure_counts_items(api: Api) -> None:
    batch_id = await _posted(api, [{"message": "MARK", "conversation": "er1", "id": "mine"}])
    receipt = (await api.http.delete("/v1/conversations/er1")).json()
    assert (receipt["items"], receipt["files"], receipt["turns"]) == (1, [], 0)
    (row,) = (await api.http.get(f"/v1/batches/{batch_id}/results")).text.splitlines()
    assert (msgspec.json.decode(row)["id"], msgspec.json.decode(row)["error"]["code"]) == (
        "mine",
        "conversation_erased",
    )
    assert (await api.http.delete("/v1/conversations/er1")).status_code == 404
