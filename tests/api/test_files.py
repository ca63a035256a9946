"""Files over HTTP, as OpenAI's SDK and plain HTTP clients use them."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.api.conftest import Api
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio
LINES = b'{"custom_id": "1"}\n' * 3


@pytest.fixture
async def sdk(api: Api) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def posted(api: Api, *, name: str = "q.jsonl", data: bytes = LINES, **fields: str) -> Any:
    reply = await api.http.post("/v1/files", files={"file": (name, data)}, data=fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_the_official_sdk(api: Api, sdk: openai.AsyncOpenAI) -> None:
    made = await sdk.files.create(file=("q.jsonl", LINES), purpose="batch")
    assert (made.object, made.bytes, made.filename, made.purpose) == ("file", len(LINES), "q.jsonl", "batch")
    assert made.status == "processed"
    assert await sdk.files.retrieve(made.id) == made
    assert (await sdk.files.content(made.id)).content == LINES
    listed = [one async for one in await sdk.files.list(limit=1)]
    assert listed == [made]
    deleted = await sdk.files.delete(made.id)
    assert (deleted.id, deleted.deleted) == (made.id, True)
    with pytest.raises(openai.NotFoundError):
        await sdk.files.retrieve(made.id)


async def test_a_life_of_its_own(api: Api, sdk: openai.AsyncOpenAI) -> None:
    made = await sdk.files.create(
        file=("q.jsonl", LINES),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert made.expires_at in (made.created_at + 3600, made.created_at + 3601)
    await sdk.files.delete(made.id)


async def test_lists_in_both_orders(api: Api, sdk: openai.AsyncOpenAI) -> None:
    made = [(await posted(api, purpose="batch"))["id"] for _ in range(5)]
    down = [one.id async for one in await sdk.files.list(limit=2)]
    up = [one.id async for one in await sdk.files.list(limit=2, order="asc")]
    assert down == up[::-1]
    assert sorted(up) == sorted(made)
    assert (await api.http.get("/v1/files", params={"purpose": "batch_output"})).json()["data"] == []
    for name in made:
        await sdk.files.delete(name)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "purpose"),
        ({"purpose": "fine-tune"}, "purpose"),
        ({"purpose": "batch", "model": "m"}, "model"),
        ({"purpose": "batch", "expires_after[seconds]": "7200"}, "expires_after[anchor]"),
        ({"purpose": "batch", "expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        (
            {"purpose": "batch", "expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            "expires_after[seconds]",
        ),
        ({"purpose": "batch" * 300}, "purpose"),
    ],
)
async def test_a_wrong_field_is_named(api: Api, fields: dict[str, str], param: str) -> None:
    reply = await api.http.post("/v1/files", files={"file": ("q.jsonl", LINES)}, data=fields)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert (await api.http.get("/v1/files")).json()["data"] == []


@pytest.mark.parametrize(("name", "data"), [("", LINES), ("n" * 256, LINES), ("q.jsonl", b"")])
async def test_a_wrong_file_is_refused(api: Api, name: str, data: bytes) -> None:
    reply = await api.http.post("/v1/files", files={"file": (name, data)}, data={"purpose": "batch"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "file")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"--b\r\n\r\n--b--\r\n"),
        ("multipart/form-data; boundary=b", b"rubbish"),
        (
            "multipart/form-data; boundary=b",
            b"--b\r\nContent-Disposition: form-data; name=file; filename=x\r\n",
        ),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nno name\r\n--b--\r\n"),
        ("multipart/form-data; boundary=" + "b" * 300, b"--b\r\n\r\nno name\r\n--b--\r\n"),
    ],
)
async def test_a_broken_form_is_refused(api: Api, kind: str, body: bytes) -> None:
    reply = await api.http.post("/v1/files", content=body, headers={"Content-Type": kind})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_form")


async def test_json_is_no_form(api: Api) -> None:
    reply = await api.http.post("/v1/files", json={})
    assert (reply.status_code, reply.json()["error"]["code"]) == (415, "unsupported_media_type")


async def test_a_file_that_is_too_long_is_refused(start: Any) -> None:
    api = await start(api_max_file_bytes=100_000)
    reply = await api.http.post(
        "/v1/files", files={"file": ("q.jsonl", b"x" * 200_000)}, data={"purpose": "batch"}
    )
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "body_too_large")


def _form(*chunks: bytes) -> AsyncIterator[bytes]:
    async def form() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="long"\r\n\r\n'
        for chunk in chunks:
            yield chunk

    return form()


async def _pieces(api: Api) -> list[bytes]:
    """The names of all pieces of files that are stored."""
    names: list[bytes] = await api.store.connection.command(
        "KEYS", f"*{api.store.settings.namespace}:*:pieces:*"
    )
    return names


@pytest.mark.parametrize(
    "end",
    [
        b'\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--b--\r\n',
        b"\r\n--b\r\nrubbish",
        b"x" * 1_000_000,
    ],
    ids=["another purpose", "no form", "too long"],
)
async def test_nothing_stays_of_a_file_that_is_refused(start: Any, end: bytes) -> None:
    api = await start(api_max_file_bytes=2_500_000)
    reply = await api.http.post(
        "/v1/files",
        content=_form(os.urandom(2_000_000), end),
        headers={"Content-Type": "multipart/form-data; boundary=b"},
    )
    assert reply.status_code in (400, 413)
    assert await _pieces(api) == []


async def test_nothing_stays_of_a_file_whose_sender_leaves(api: Api) -> None:
    async def broken() -> AsyncIterator[bytes]:
        async for chunk in _form(os.urandom(2_000_000)):
            yield chunk
        await eventually(lambda: _stored(True))
        raise ConnectionError

    async def _stored(whether: bool) -> bool:
        return bool(await _pieces(api)) is whether

    with pytest.raises(ConnectionError):
        await api.http.post(
            "/v1/files", content=broken(), headers={"Content-Type": "multipart/form-data; boundary=b"}
        )
    await eventually(lambda: _stored(False))


async def test_a_name_in_any_script_comes_back(api: Api) -> None:
    made = await posted(api, name="fragen-für-日本.jsonl", purpose="batch")
    assert made["filename"] == "fragen-für-日本.jsonl"
    reply = await api.http.get(f"/v1/files/{made['id']}/content")
    assert "%E6%97%A5" in reply.headers["content-disposition"]
    await api.http.delete(f"/v1/files/{made['id']}")


async def test_a_long_file_takes_little_memory(api: Api) -> None:
    """24 MB go up and come down through one process that never holds half of them."""
    data = os.urandom(1024 * 1024)

    async def form() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="long"\r\n\r\n'
        for _ in range(24):
            yield data
        yield b"\r\n--b--\r\n"

    tracemalloc.start()
    try:
        made = await api.http.post(
            "/v1/files", content=form(), headers={"Content-Type": "multipart/form-data; boundary=b"}
        )
        path, length = f"/v1/files/{made.json()['id']}/content", 0
        async with api.http.stream("GET", path) as reply:
            async for chunk in reply.aiter_bytes():
                length += len(chunk)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert length == 24 * len(data)
    assert most < 12 * len(data)
    await api.http.delete(path.removesuffix("/content"))
