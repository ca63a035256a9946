"""What a streamed chunk and a whole call cost in CPU, beside plain aiohttp and langchain-openai.

`python -m tests.benchmarks.providers` prints a table in about half a minute. The server is a process
of its own and only sends prepared bytes; CPU is that of the client's process. All contenders take
turns in one run, and the best of the rounds counts, because other programs only ever add to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, cast

import aiohttp
import uvloop
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from aiforge.core.deltas import CallParams, CallRequest, TextDelta
from aiforge.core.openai_chat.model import OpenAIChat
from aiforge.core.providers import complete, stream_deltas
from aiforge.core.settings import AIForgeSettings

STREAMS = 64
CHUNKS = 50
GAP = 0.01
CALLS = 100
ROUNDS = 3
CALLS_EACH = 10

PARAMS = CallParams()
MESSAGES = [{"role": "user", "content": "What are your opening hours on public holidays?"}]
Contender = Callable[[], Awaitable[int]]


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    document = {
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "object": "chat.completion.chunk",
        "created": 1741569952,
        "model": "gpt-4o-mini-2024-07-18",
        "service_tier": "default",
        "system_fingerprint": "fp_44709d6fcb",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(document).encode() + b"\n\n"


USAGE = {"prompt_tokens": 19, "completion_tokens": 50, "total_tokens": 69}
ENDING = [
    _chunk({}, "stop"),
    b"data: "
    + json.dumps({"object": "chat.completion.chunk", "choices": [], "usage": USAGE}).encode()
    + b"\n\n",
    b"data: [DONE]\n\n",
]
ANSWER = json.dumps(
    {
        "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
        "object": "chat.completion",
        "created": 1741569952,
        "model": "gpt-4o-mini-2024-07-18",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "We are open from nine to five. " * 8},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }
).encode()


class _Server(asyncio.Protocol):
    """Answers each request with prepared bytes: a stream of single chunks, or one JSON document.

    The document comes after `latency` seconds.
    """

    def __init__(self, latency: float) -> None:
        self._latency = latency

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0) if blank else 1
        if len(body) < length:
            return
        self._received = b""
        if b'"stream":true' in body or b'"stream": true' in body:
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                b"transfer-encoding: chunked\r\n\r\n"
            )
            self._send(0)
        else:
            self._answer()

    def _answer(self) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        whole = head % len(ANSWER) + ANSWER
        if self._latency:
            asyncio.get_running_loop().call_later(self._latency, self._transport.write, whole)
        else:
            self._transport.write(whole)

    def _send(self, number: int) -> None:
        pieces = [_chunk({"content": f" word{number}"})] if number < CHUNKS else ENDING
        for piece in pieces:
            self._transport.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        if number < CHUNKS:
            asyncio.get_running_loop().call_later(GAP, self._send, number + 1)
        else:
            self._transport.write(b"0\r\n\r\n")


def _serve(port_to: Connection, latency: float) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(
            functools.partial(_Server, latency), "127.0.0.1", 0, backlog=1024
        )
        port_to.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


def _contenders(url: str, session: aiohttp.ClientSession) -> dict[str, tuple[Contender, Contender]]:
    """By name: one streamed call that returns its number of chunks, and one whole call."""
    settings = AIForgeSettings.load(OPENAI_API_KEY="bench", OPENAI_BASE_URL=url)
    ours = OpenAIChat.from_settings(settings, model="gpt-4o-mini")
    theirs = ChatOpenAI(
        model="gpt-4o-mini",
        base_url=url,
        api_key=SecretStr("bench"),
        stream_usage=True,
        max_retries=0,
        use_responses_api=False,
    )
    body = {"model": "gpt-4o-mini", "messages": MESSAGES}
    endpoint = f"{url}/chat/completions"

    async def plain_stream() -> int:
        texts = 0
        async with session.post(endpoint, json={**body, "stream": True}) as reply:
            async for line in reply.content:
                if line.startswith(b"data: ") and line[6:12] != b"[DONE]":
                    choices = json.loads(line[6:])["choices"]
                    texts += bool(choices and choices[0]["delta"].get("content"))
        return texts

    async def plain_call() -> int:
        async with session.post(endpoint, json={**body, "stream": False}) as reply:
            return len((await reply.json())["choices"][0]["message"]["content"])

    async def our_stream() -> int:
        texts = 0
        async for delta in stream_deltas(ours, CallRequest(MESSAGES, None, PARAMS, "bench")):
            texts += isinstance(delta, TextDelta)
        return texts

    async def our_call() -> int:
        return len((await complete(ours, CallRequest(MESSAGES, None, PARAMS, "bench"))).text)

    def stream_of(model: OpenAIChat | ChatOpenAI) -> Contender:
        async def stream() -> int:
            texts = 0
            async for chunk in model.astream(MESSAGES):
                texts += bool(chunk.content)
            return texts

        return stream

    def call_of(model: OpenAIChat | ChatOpenAI) -> Contender:
        async def call() -> int:
            return len((await model.ainvoke(MESSAGES)).content)

        return call

    return {
        "aiohttp, json.loads": (plain_stream, plain_call),
        "aiforge stream_deltas/complete": (our_stream, our_call),
        "aiforge astream/ainvoke": (stream_of(ours), call_of(ours)),
        "langchain-openai": (stream_of(theirs), call_of(theirs)),
    }


async def _streamed(stream: Contender) -> float:
    """CPU microseconds a chunk."""
    start = time.process_time()
    counts = await asyncio.gather(*(stream() for _ in range(STREAMS)))
    assert counts == [CHUNKS] * STREAMS
    return (time.process_time() - start) / (STREAMS * CHUNKS) * 1e6


async def _called(call: Contender) -> tuple[float, float]:
    """Calls a second, and CPU microseconds a call."""

    async def several() -> None:
        for _ in range(CALLS_EACH):
            assert await call() > 0

    cpu, start = time.process_time(), time.perf_counter()
    await asyncio.gather(*(several() for _ in range(CALLS)))
    count = CALLS * CALLS_EACH
    return count / (time.perf_counter() - start), (time.process_time() - cpu) / count * 1e6


async def _run(url: str) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        contenders = _contenders(url, session)
        chunks: dict[str, list[float]] = {name: [] for name in contenders}
        calls: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for _ in range(ROUNDS):
            for name, (stream, call) in contenders.items():
                chunks[name].append(await _streamed(stream))
                calls[name].append(await _called(call))
    print(f"{STREAMS} streams of {CHUNKS} chunks; {CALLS} calls at a time; best of {ROUNDS} rounds\n")
    print(f"{'':32}{'µs CPU/chunk':>14}{'calls/s':>10}{'µs CPU/call':>14}{'calls/s ratio':>15}")
    plain = max(rate for rate, _ in calls["aiohttp, json.loads"])
    for name in contenders:
        rate = max(rate for rate, _ in calls[name])
        cpu = min(cpu for _, cpu in calls[name])
        print(f"{name:32}{min(chunks[name]):14.1f}{rate:10.0f}{cpu:14.0f}{rate / plain:15.2f}")


@contextlib.contextmanager
def serving(latency: float = 0.0) -> Iterator[str]:
    """The server as a process of its own; yields its base URL."""
    port_from, port_to = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(port_to, latency), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{port_from.recv()}/v1"
    finally:
        server.kill()
        server.join()


def main() -> None:
    """Start the server, measure, print."""
    with serving() as url:
        uvloop.run(_run(url))


if __name__ == "__main__":
    main()
