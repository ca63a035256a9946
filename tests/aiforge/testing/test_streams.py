"""What happens inside a stream: bytes split anywhere, silence, cuts, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any

import aiohttp
import openai
import pytest

from aiforge.testing import Cut, Fail, FakeProvider, Gate, Raw, Reply, Silence

S18 = "日本😀\u0085\u2028é"
BODY: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


async def read(http: aiohttp.ClientSession, provider: FakeProvider) -> bytes:
    async with http.post(f"{provider.url}/chat/completions", json=BODY) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return await response.read()


def text_of(stream: bytes) -> str:
    events = [line.removeprefix(b"data: ") for line in stream.split(b"\n\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def connect(provider: FakeProvider) -> socket.socket:
    """A socket on which the streaming request is already sent."""
    connection = socket.create_connection((provider.host, provider.port), timeout=10)
    body = json.dumps(BODY).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def read_until(connection: socket.socket, end: bytes) -> list[bytes]:
    """All that arrives until `end` was seen, one entry a read."""
    reads = [connection.recv(65536)]
    while reads[-1] and end not in b"".join(reads):
        reads.append(connection.recv(65536))
    return reads


def dechunk(body: bytes) -> list[bytes]:
    """The chunks of a chunked HTTP body, without the closing empty one."""
    chunks = []
    while body:
        size, rest = body.split(b"\r\n", 1)
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n"
        if length:
            chunks.append(rest[:length])
        body = rest[length + 2 :]
    return chunks


def test_a_stream_split_at_each_of_its_bytes_is_the_same_text() -> None:
    async def main() -> None:
        async with FakeProvider(Reply(chunks=[S18])) as provider, aiohttp.ClientSession() as http:
            whole = await read(http, provider)
            assert text_of(whole) == S18
            provider.push(*(Reply(chunks=[S18], split_at=(at,)) for at in range(1, len(whole))))
            texts = [
                text_of(body) for body in await asyncio.gather(*(read(http, provider) for _ in whole[1:]))
            ]
            assert texts == [S18] * (len(whole) - 1)

    asyncio.run(main())


def test_the_split_is_where_it_was_asked_for() -> None:
    with FakeProvider(
        Reply(chunks=[S18]), Reply(chunks=[S18], split_at=(5, 200, 201)), Reply(chunks=[S18], piece=7)
    ) as p:
        bodies = []
        for _ in range(3):
            with connect(p) as connection:
                reads = read_until(connection, b"0\r\n\r\n")
            bodies.append(dechunk(b"".join(reads).split(b"\r\n\r\n", 1)[1]))
    whole = b"".join(bodies[0])
    assert [text_of(b"".join(body)) for body in bodies] == [S18] * 3
    edges, offset = set(), 0
    for chunk in bodies[1]:
        offset += len(chunk)
        edges.add(offset)
    assert {5, 200, 201} <= edges
    assert {len(chunk) for chunk in bodies[2][:-1]} <= set(range(1, 8))
    assert len(bodies[2]) >= len(whole) // 7


def test_pieces_arrive_one_by_one() -> None:
    with FakeProvider(Reply(chunks=[S18], piece=1)) as provider, connect(provider) as connection:
        reads = read_until(connection, b"0\r\n\r\n")
    assert len(reads) > 100
    assert S18.encode() in b"".join(dechunk(b"".join(reads).split(b"\r\n\r\n", 1)[1]))


def test_raw_bytes_are_sent_as_they_are() -> None:
    cut = S18.encode()[:5]
    reply = Reply(chunks=[Raw(b": ping\n\n"), Raw(b'data: {"x": "' + cut)], ending="none")
    with FakeProvider(reply) as provider, connect(provider) as connection:
        body = b"".join(read_until(connection, b"0\r\n\r\n")).split(b"\r\n\r\n", 1)[1]
    assert b"".join(dechunk(body)) == b': ping\n\ndata: {"x": "' + cut


@pytest.mark.parametrize("how", ["reset", "close", "end"])
def test_each_kind_of_cut_on_the_wire(how: Any) -> None:
    with FakeProvider(Reply(chunks=["a", "b", Cut(how)])) as provider, connect(provider) as connection:
        received = b"".join(read_until(connection, b'"b"'))
        assert b'"a"' in received
        if how == "reset":
            with pytest.raises(ConnectionResetError):
                read_until(connection, b"never")
        else:
            received += b"".join(read_until(connection, b"0\r\n\r\n"))
            assert received.endswith(b"0\r\n\r\n") == (how == "end")
        assert b"[DONE]" not in received
        provider.wait_until(lambda: provider.calls[0].end == "cut")
        assert (provider.calls[0].chunks, provider.calls[0].status) == (2, 200)


@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_cut_stream_is_an_error_in_the_clients(how: Any) -> None:
    async def main() -> None:
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{provider.url}/chat/completions", json=BODY) as response,
        ):
            received = b""
            while b'"c"' not in received:
                received += await response.content.readany()
            assert text_of(received) == "abc"
            with pytest.raises(aiohttp.ClientError):
                await response.read()

    with FakeProvider(default=Reply(chunks=["a", "b", "c", Cut(how)])) as provider:
        asyncio.run(main())
        with openai.OpenAI(base_url=provider.url, api_key="k", max_retries=0) as client:
            stream = client.chat.completions.create(**BODY)
            with pytest.raises(openai.APIConnectionError):
                list(stream)


def test_a_cut_breaks_whole_answers_too() -> None:
    async def main() -> None:
        async with (
            FakeProvider(Reply(chunks=["a", Cut("close")])) as provider,
            aiohttp.ClientSession() as http,
        ):
            body = {**BODY, "stream": False}
            async with http.post(f"{provider.url}/chat/completions", json=body) as response:
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()

    asyncio.run(main())


@pytest.mark.parametrize("instead", ["reset", "close"])
def test_a_connection_dropped_instead_of_an_answer(instead: Any) -> None:
    with FakeProvider(Reply(instead=instead)) as provider:
        with connect(provider) as connection:
            if instead == "reset":
                with pytest.raises(ConnectionResetError):
                    connection.recv(1)
            else:
                assert connection.recv(1) == b""
        provider.wait_until(lambda: provider.calls[0].end == "dropped")
        assert provider.calls[0].status is None


@pytest.mark.parametrize(
    ("reply", "chunks"),
    [
        (Reply(instead="silence"), 0),
        (Reply(delay=60), 0),
        (Reply(chunks=["a", Silence()]), 1),
        (Reply(chunks=["a"] * 9, gap=60), 1),
    ],
)
def test_a_client_that_leaves_is_seen_at_once(reply: Reply, chunks: int) -> None:
    with FakeProvider(reply) as provider:
        with connect(provider):
            provider.wait_until(lambda: provider.calls.running == 1 and provider.calls[0].chunks == chunks)
            left = time.time()
        provider.wait_until(lambda: provider.calls[0].end == "closed", 1.0)
        closed = provider.calls[0].closed
        assert closed is not None
        assert closed - left < 1.0
        assert provider.calls.running == 0


def test_stopping_breaks_off_what_runs() -> None:
    with FakeProvider(Reply(chunks=["a", Silence()])) as provider:
        connection = connect(provider)
        read_until(connection, b'"a"')
        began = time.monotonic()
    with connection:
        assert time.monotonic() - began < 2
        assert provider.calls[0].end == "stopped"
        assert b"[DONE]" not in b"".join(read_until(connection, b"never"))


def test_a_gate_holds_the_stream_until_it_opens() -> None:
    with FakeProvider(Reply(chunks=["a", Gate("g"), "b"])) as provider, connect(provider) as connection:
        received = b"".join(read_until(connection, b'"a"'))
        assert b'"b"' not in received
        provider.open("g")
        assert b'"b"' in b"".join(read_until(connection, b"[DONE]"))


def test_gaps_and_silence_take_their_time() -> None:
    replies = (Reply(chunks=["a", "b", "c"], gap=0.1), Reply(chunks=["a", "b", "c"], gap=[0.15, 0.05]))
    with FakeProvider(
        *replies, Reply(chunks=["a", Silence(0.2), "b"]), Reply(text="a", delay=0.2)
    ) as provider:
        for _ in range(4):
            with connect(provider) as connection:
                began = time.monotonic()
                read_until(connection, b"[DONE]")
                assert 0.19 <= time.monotonic() - began < 2


def test_keep_alive_and_close_are_honoured() -> None:
    with FakeProvider() as provider:
        body = json.dumps({**BODY, "stream": False}).encode()
        with socket.create_connection((provider.host, provider.port), timeout=10) as connection:
            for close in ("", "", "connection: close\r\n"):
                head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
                head += f"{close}content-length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
                received = b"".join(read_until(connection, b"total_tokens"))
                assert received.startswith(b"HTTP/1.1 200 OK\r\n")
                assert (b"connection: close" in received) == bool(close)
            assert b"".join(read_until(connection, b"never")) in (b"", received[-4:])


def test_a_failure_ends_a_stream_properly() -> None:
    with FakeProvider(Reply(chunks=["a", Fail("no", "broken")])) as provider, connect(provider) as connection:
        received = b"".join(read_until(connection, b"0\r\n\r\n"))
        assert (
            b'data: {"error":{"message":"no","type":"server_error","param":null,"code":"broken"}}' in received
        )
        provider.wait_until(lambda: provider.calls[0].end == "refused")
        assert provider.calls[0].fault == "broken"
