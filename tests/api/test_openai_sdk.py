"""Every method of OpenAI's own client for files and batches, and every field that it knows of the answers."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import openai
import pytest
from openai.types import Batch, FileObject
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from aiforge.testing import FakeProvider, failure
from tests.api.conftest import Api
from tests.api.test_openai_batches import client, counts, create, line, provider, rows, worker
from tests.support.runners import LocalWorker
from tests.support.waiting import eventually

__all__ = ["client", "provider", "worker"]

pytestmark = pytest.mark.anyio
T = TypeVar("T")
CHAT: Final = "/v1/chat/completions"
LINES: Final = (line(1, "a\u2028b 🙂") + "\n").encode()
OPENAIS_BATCH: Final = "batch_6711aaf0e4b0819093b7d0a6a4b6c1f2"
OPENAIS_FILE: Final = "file-AbCdEfGhIjKlMnOpQrStUv"
RUNS: Final = ("validating", "in_progress", "finalizing", "cancelling")


class Sync:
    """The synchronous client, in a thread of its own: the service runs on the test's loop."""

    def __init__(self, sdk: openai.OpenAI) -> None:
        self.sdk = sdk

    async def __call__(self, use: Callable[..., T], *arguments: object) -> T:
        return await asyncio.to_thread(use, self.sdk, *arguments)


@pytest.fixture
async def sync(api: Api) -> AsyncIterator[Sync]:
    with openai.OpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as made:
        yield Sync(made)


def whole(value: object) -> None:
    """All that the client knows of an object was sent, and is of the type that the client says."""
    if isinstance(value, list):
        for one in value:
            whole(one)
    elif isinstance(value, BaseModel):
        kind = type(value)
        assert set(kind.model_fields) <= value.model_fields_set, value
        kind.model_validate(value.model_dump(), strict=True)
        for name in kind.model_fields:
            whole(getattr(value, name))


async def walked(client: openai.AsyncOpenAI, worker: LocalWorker, batch: Batch) -> tuple[Batch, set[str]]:
    """Run a batch to its end; all its states."""
    seen = set[str]()
    while True:
        whole(batch)
        seen.add(batch.status)
        if batch.status not in RUNS:
            return batch, seen
        assert (batch.output_file_id, batch.error_file_id) == (None, None)
        await worker.slices.run(batch.id)
        batch = await client.batches.retrieve(batch.id)


async def test_a_batch_is_whole_in_every_state(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider
) -> None:
    provider.when("question 2.", failure(400))
    done, seen = await walked(client, worker, await create(client, "\n".join(map(line, range(4)))))
    assert seen == {"validating", "in_progress", "finalizing", "completed"}
    failed, seen = await walked(client, worker, await create(client, "{\n[]"))
    assert (seen, failed.in_progress_at) == ({"validating", "failed"}, None)
    running = await create(client, "\n".join(map(line, range(4))))
    await worker.slices.run(running.id)
    whole(await client.batches.cancel(running.id))
    _, seen = await walked(client, worker, await client.batches.retrieve(running.id))
    assert seen == {"cancelling", "cancelled"}
    late = await create(client, line(0), completion_window="1s")
    await worker.slices.run(late.id)
    await eventually(lambda: stopped(client, worker, late.id))
    late, seen = await walked(client, worker, await client.batches.retrieve(late.id))
    assert (late.status, seen - {"finalizing"}) == ("expired", {"expired"})
    page = await client.batches.list()
    assert {one.status for one in page.data} == {"completed", "failed", "cancelled", "expired"}
    whole(page.data)
    assert [one.model_dump() for one in page.data if one.id == done.id] == [done.model_dump()]


async def stopped(client: openai.AsyncOpenAI, worker: LocalWorker, batch_id: str) -> bool:
    """Whether its window is over."""
    await worker.reaper.tick()
    return (await client.batches.retrieve(batch_id)).status in ("finalizing", "expired")


async def test_rows_are_what_openai_says_they_are(
    client: openai.AsyncOpenAI, worker: LocalWorker, provider: FakeProvider
) -> None:
    provider.when("question 2.", failure(400))
    done, _ = await walked(client, worker, await create(client, "\n".join(map(line, range(4)))))
    good, bad = await rows(client, done.output_file_id), await rows(client, done.error_file_id)
    assert counts(done) == (4, len(good), len(bad)) == (4, 3, 1)
    for row in good + bad:
        assert set(row) == {"id", "custom_id", "response", "error"}
        assert set(row["response"]) == {"status_code", "request_id", "body"}
        assert row["id"].startswith("batch_req_")
    said = [ChatCompletion.model_validate(row["response"]["body"]) for row in good]
    assert done.usage is not None
    used = [one.usage for one in said if one.usage is not None]
    assert (done.usage.input_tokens, done.usage.output_tokens) == (
        sum(one.prompt_tokens for one in used),
        sum(one.completion_tokens for one in used),
    )
    assert done.usage.total_tokens == sum(one.total_tokens for one in used)


async def test_a_file_in_every_form_that_the_client_takes(sync: Sync, tmp_path: Path) -> None:
    path = tmp_path / "fragen für 日本.jsonl"
    path.write_bytes(LINES)
    forms: dict[str, Any] = {
        "upload": LINES,
        path.name: path,
        "a.jsonl": ("a.jsonl", io.BytesIO(LINES)),
        "b.jsonl": ("b.jsonl", LINES, "application/jsonl"),
        "c.jsonl": ("c.jsonl", LINES, "application/jsonl", {"X-Of-The-Caller": "1"}),
    }
    for name, form in forms.items():
        made = await sync(lambda sdk, form: sdk.files.create(file=form, purpose="batch"), form)
        assert (made.filename, made.bytes, made.status) == (name, len(LINES), "processed")
        whole(made)
        again = await sync(lambda sdk, name: sdk.files.wait_for_processing(name, poll_interval=0.01), made.id)
        assert again == made
    whole((await sync(lambda sdk: sdk.files.list())).data)


async def test_content_in_every_way_that_the_client_reads(
    client: openai.AsyncOpenAI, sync: Sync, tmp_path: Path
) -> None:
    data = LINES * 20_000
    made = await client.files.create(file=("long.jsonl", data), purpose="batch")
    assert await client.files.wait_for_processing(made.id) == made
    assert (await client.files.content(made.id)).text == data.decode()
    async with client.files.with_streaming_response.content(made.id) as reply:
        assert int(reply.headers["content-length"]) == len(data)
        assert b"".join([piece async for piece in reply.iter_bytes()]) == data
    with pytest.warns(DeprecationWarning, match="content"):
        assert await client.files.retrieve_content(made.id) == data.decode()

    def read(sdk: openai.OpenAI) -> tuple[bytes, bytes, bytes]:
        with sdk.files.with_streaming_response.content(made.id) as reply:
            reply.stream_to_file(tmp_path / "streamed")
        whole = sdk.files.content(made.id)
        whole.write_to_file(tmp_path / "written")
        return whole.read(), (tmp_path / "streamed").read_bytes(), (tmp_path / "written").read_bytes()

    assert await sync(read) == (data, data, data)


async def test_a_raw_answer_says_what_was_repeated(client: openai.AsyncOpenAI, sync: Sync) -> None:
    file = await client.files.create(file=LINES, purpose="batch")

    def post(sdk: openai.OpenAI) -> Any:
        return sdk.batches.with_raw_response.create(
            input_file_id=file.id,
            endpoint=CHAT,
            completion_window="24h",
            extra_headers={"Idempotency-Key": "nightly"},
            extra_body={"dedupe": True, "max_cost": "1.5"},
        )

    first, second = await sync(post), await sync(post)
    assert [one.headers.get("idempotent-replayed") for one in (first, second)] == [None, "true"]
    assert first.parse().id == second.parse().id
    assert first.parse().model_extra["max_cost"] == "1.5"
    assert first.headers["location"] == f"/v1/batches/{first.parse().id}"
    batch = await client.batches.retrieve(first.parse().id)
    assert batch._request_id
    with pytest.raises(openai.ConflictError) as refused:
        await client.batches.create(
            input_file_id=file.id,
            endpoint=CHAT,
            completion_window="24h",
            extra_headers={"Idempotency-Key": "nightly"},
        )
    assert refused.value.code == "idempotency_mismatch"
    assert refused.value.request_id not in (None, batch._request_id)


@pytest.mark.parametrize(
    ("metadata", "param"),
    [
        ({f"key {number}": "v" for number in range(16)}, None),
        ({f"key {number}": "v" for number in range(17)}, "metadata"),
        ({"k" * 64: "v" * 512}, None),
        ({"k": ""}, None),
        ({"k" * 65: "v"}, f"metadata.{'k' * 64}"),
        ({"k": "v" * 513}, "metadata.k"),
        ({}, None),
        (None, None),
    ],
)
async def test_what_metadata_may_be(
    client: openai.AsyncOpenAI, metadata: dict[str, str] | None, param: str | None
) -> None:
    file = await client.files.create(file=LINES, purpose="batch")

    async def posted() -> Batch:
        return await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata=metadata
        )

    if param is None:
        assert ((await posted()).metadata or {}) == (metadata or {})
        return
    with pytest.raises(openai.BadRequestError) as refused:
        await posted()
    assert (refused.value.param, refused.value.type) == (param, "invalid_request_error")


@pytest.mark.parametrize("seconds", [3_599, 3_600, 2_592_000, 2_592_001])
async def test_how_long_files_may_live(client: openai.AsyncOpenAI, worker: LocalWorker, seconds: int) -> None:
    life: Any = {"anchor": "created_at", "seconds": seconds}
    plain = await client.files.create(file=LINES, purpose="batch")
    assert plain.expires_at is not None
    assert plain.expires_at - plain.created_at in (2_592_000, 2_592_001)
    if seconds in (3_599, 2_592_001):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.files.create(file=LINES, purpose="batch", expires_after=life)
        assert refused.value.param == "expires_after[seconds]"
        with pytest.raises(openai.BadRequestError) as refused:
            await create(client, LINES, output_expires_after=life)
        assert refused.value.param == "output_expires_after.seconds"
        return
    own = await client.files.create(file=LINES, purpose="batch", expires_after=life)
    done, _ = await walked(client, worker, await create(client, LINES, output_expires_after=life))
    output = await client.files.retrieve(str(done.output_file_id))
    for made in (own, output):
        assert made.expires_at is not None
        assert made.expires_at - made.created_at in (seconds, seconds + 1)


@pytest.mark.parametrize(
    "purpose",
    ["assistants", "assistants_output", "evals", "fine-tune", "fine-tune-results", "user_data", "vision"],
)
async def test_of_other_purposes_there_are_no_files(client: openai.AsyncOpenAI, purpose: str) -> None:
    await client.files.create(file=LINES, purpose="batch")
    page = await client.files.list(purpose=purpose)
    assert (page.data, page.has_more) == ([], False)


async def test_pages_are_walked_in_every_way(client: openai.AsyncOpenAI, sync: Sync) -> None:
    file = await client.files.create(file=LINES, purpose="batch")
    made = [(await create(client, LINES)).id for _ in range(5)]
    pages = [page async for page in (await client.batches.list(limit=2)).iter_pages()]
    found = [one.id for page in pages for one in page.data]
    assert ([len(page.data) for page in pages], sorted(found)) == ([2, 2, 1], sorted(made))
    for page in pages:
        assert page.model_extra is not None
        assert (page.model_extra["first_id"], page.model_extra["last_id"]) == (
            page.data[0].id,
            page.data[-1].id,
        )
    assert [page.has_next_page() for page in pages] == [True, True, False]
    assert await sync(lambda sdk: [one.id for one in sdk.batches.list(limit=3)]) == found
    assert await sync(lambda sdk: sdk.batches.list(limit=3).get_next_page().data[0].id) == found[3]
    down = await sync(lambda sdk: [one.id for one in sdk.files.list(limit=4, purpose="batch")])
    up = await sync(lambda sdk: [one.id for one in sdk.files.list(limit=4, order="asc")])
    assert (len(down), down) == (6, up[::-1])
    assert up[0] == file.id


async def test_ids_of_openai_are_ids_of_nothing(client: openai.AsyncOpenAI) -> None:
    """Who changes the address comes with ids of before."""
    asked: list[tuple[Callable[[str], Any], str]] = [
        (client.batches.retrieve, OPENAIS_BATCH),
        (client.batches.cancel, OPENAIS_BATCH),
        (client.files.retrieve, OPENAIS_FILE),
        (client.files.content, OPENAIS_FILE),
        (client.files.delete, OPENAIS_FILE),
    ]
    for ask, name in asked:
        with pytest.raises(openai.NotFoundError) as refused:
            await ask(name)
        assert (refused.value.code, refused.value.type) == ("not_found", "invalid_request_error")


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"input_file_id": OPENAIS_FILE}, "input_file_id"),
        ({"completion_window": "tomorrow"}, "completion_window"),
        (
            {"output_expires_after": {"anchor": "last_active_at", "seconds": 3600}},
            "output_expires_after.anchor",
        ),
        ({"extra_body": {"endpoint": None}}, "endpoint"),
        ({"extra_body": {"completion_window": None}}, "completion_window"),
        ({"extra_body": {"no_such_field": 1}}, "no_such_field"),
    ],
)
async def test_a_wrong_argument_is_named(
    client: openai.AsyncOpenAI, wrong: dict[str, Any], param: str
) -> None:
    file = await client.files.create(file=LINES, purpose="batch")
    options: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    with pytest.raises(openai.BadRequestError) as refused:
        await client.batches.create(**{**options, **wrong})
    assert (refused.value.param, refused.value.type) == (param, "invalid_request_error")
    assert param in refused.value.message


async def test_what_will_not_change_is_not_asked_again(
    api: Api, client: openai.AsyncOpenAI, worker: LocalWorker
) -> None:
    """The client repeats a conflict by itself unless it is told not to."""
    done, _ = await walked(client, worker, await create(client, LINES))
    replies: list[int] = []

    async def heard(reply: Any) -> None:
        replies.append(reply.status_code)

    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [heard]})
    async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", http_client=http) as patient:
        assert patient.max_retries > 0
        with pytest.raises(openai.ConflictError):
            await patient.batches.cancel(done.id)
        with pytest.raises(openai.NotFoundError):
            await patient.files.delete(OPENAIS_FILE)
    assert replies == [409, 404]


async def test_deleting_is_told_whole(client: openai.AsyncOpenAI, sync: Sync) -> None:
    made = [await client.files.create(file=LINES, purpose="batch") for _ in range(2)]
    whole(await client.files.delete(made[0].id))
    whole(await sync(lambda sdk: sdk.files.delete(made[1].id)))
    left: list[FileObject] = (await client.files.list()).data
    assert left == []
    assert json.loads((await client.files.with_raw_response.list()).text) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
