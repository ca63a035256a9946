"""Everything a request can get wrong before a route sees it, in the one error shape."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.api.conftest import Api, Start

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}


def shape(reply: httpx.Response) -> tuple[int, str]:
    """Status and code of a reply that must have the error shape."""
    body = reply.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    return reply.status_code, body["error"]["code"]


async def test_unknown_routes_and_methods(api: Api) -> None:
    assert shape(await api.http.get("/v1/nothing")) == (404, "route_not_found")
    assert shape(await api.http.get("/v1/turns/")) == (404, "route_not_found")
    reply = await api.http.delete("/v1/turns")
    assert shape(reply) == (405, "method_not_allowed")
    assert reply.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b'{"message": "a",}',
        b'{"message": NaN}',
        b'{"message": "\xff"}',
        b'{"message": "\\ud800"}',
        b'{"message": [{"type": "text", "text": ' + b"[" * 10_000 + b"]" * 10_000 + b"}]}",
    ],
)
async def test_bad_json(api: Api, body: bytes) -> None:
    assert shape(await api.http.post("/v1/turns", content=body, headers=JSON)) == (400, "invalid_json")


async def test_deep_json_where_no_list_belongs(api: Api) -> None:
    body = b"[" * 10_000 + b"]" * 10_000
    assert shape(await api.http.post("/v1/turns", content=body, headers=JSON))[0] == 400


async def test_bodies_that_are_not_plain_json(api: Api) -> None:
    bomb = gzip.compress(b" " * 1_000_000)
    zipped = await api.http.post("/v1/turns", content=bomb, headers=JSON | {"Content-Encoding": "gzip"})
    form = await api.http.post("/v1/turns", data={"message": "hi"})
    bare = await api.http.post("/v1/turns", content=b'{"message":"hi"}')

    assert shape(zipped) == (415, "unsupported_encoding")
    assert shape(form) == shape(bare) == (415, "unsupported_media_type")


async def test_a_long_body_is_refused_by_its_length_before_it_is_sent(start: Start) -> None:
    api = await start(api_max_body_bytes=2000)
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/turns HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 999999999999\r\n\r\n"
    )
    async with asyncio.timeout(5):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"body_too_large"' in answer
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("declared", [True, False])
async def test_who_sends_too_much_gets_to_the_answer(start: Start, declared: bool) -> None:
    api = await start(api_max_body_bytes=2000)

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b" " * 100_000

    reply = await api.http.post("/v1/turns", content=b" " * 5_000_000 if declared else parts(), headers=JSON)
    assert shape(reply) == (413, "body_too_large")
    assert reply.headers["connection"] == "close"


async def test_an_endless_body_is_cut_off(start: Start) -> None:
    api = await start(api_max_body_bytes=2000)
    host, port = api.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/turns HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    with pytest.raises(ConnectionError):
        await _send_for_ever(writer)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_batches_have_a_limit_of_their_own(start: Start) -> None:
    api = await start(api_max_body_bytes=2000, api_max_batch_bytes=20_000)
    items = [{"message": "x" * 100}] * 50
    assert (await api.http.post("/v1/batches", json={"items": items})).status_code == 200
    assert shape(await api.http.post("/v1/batches", json={"items": items * 5})) == (413, "body_too_large")


async def test_the_request_id_is_the_callers_when_it_is_sane(api: Api) -> None:
    async def sent(value: str) -> str:
        return (await api.http.get("/livez", headers={"x-request-id": value})).headers["x-request-id"]

    assert await sent("abc-1.2_3") == "abc-1.2_3"
    for insane in ("", "a b", "x" * 129, "a;b"):
        assert re.fullmatch(r"req_[0-9a-f]{16}", await sent(insane))


async def test_what_nobody_expected_is_a_500_without_its_text(
    capsys: pytest.CaptureFixture[str], api: Api
) -> None:
    reason = "secret text of a message"

    async def broken() -> str | None:
        raise RuntimeError(reason)

    api.store.ready = broken  # type: ignore[method-assign]  # the real one does not break like this
    reply = await api.http.get("/readyz", headers={"x-request-id": "abc"})

    assert shape(reply) == (500, "internal_error")
    assert reason not in reply.text
    line = capsys.readouterr().err
    assert '"error":"RuntimeError"' in line
    assert '"request_id":"abc"' in line
    assert reason not in line


async def _send_for_ever(writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(20):
        while True:
            writer.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
            await writer.drain()
