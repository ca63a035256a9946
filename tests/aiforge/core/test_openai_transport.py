"""Connections: time limits, cancellation, keep-alive, width, proxies, certificates, event loops."""

from __future__ import annotations

import asyncio
import gc
import ssl
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import uvloop

from aiforge.core.deltas import CallParams, CallRequest, TextDelta
from aiforge.core.openai_chat.model import OpenAIChat
from aiforge.core.openai_chat.transport import Transport
from aiforge.core.providers import create_model, stream_deltas
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import (
    APITimeoutError,
    ConfigError,
    ProviderError,
    StreamCutError,
    UnavailableError,
)
from aiforge.testing import FakeProvider, Gate, Raw, Reply, Silence, Step
from tests.aiforge.core.support import HELLO, KEY, ask, hear, openai_model, read_request, wire_server


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    with FakeProvider() as running:
        yield running


STREAM = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def json_reply(text: str) -> bytes:
    body = b'{"choices":[{"message":{"content":"%b"}}]}' % text.encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def timed(model: OpenAIChat, *, whole: bool = False) -> tuple[float, ProviderError]:
    start = time.monotonic()
    if whole:
        with pytest.raises(ProviderError) as caught:
            await ask(model)
        return time.monotonic() - start, caught.value
    heard = await hear(model)
    assert heard.error is not None
    return time.monotonic() - start, heard.error


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("reply", [Reply(instead="silence"), Reply(chunks=[Raw(b": hello\n\n"), Silence()])])
def test_no_first_token(provider: FakeProvider, reply: Reply, whole: bool) -> None:
    """Q12: silence before headers, and headers without a token."""
    provider.push(reply)
    model = openai_model(provider.url, FIRST_TOKEN_TIMEOUT=0.3, TOKEN_TIMEOUT=9)
    seconds, error = asyncio.run(timed(model, whole=whole and reply.instead is not None))
    assert isinstance(error, APITimeoutError)
    assert "no first token within 0.3 s" in str(error)
    assert 0.25 < seconds < 2
    provider.wait_until(lambda: provider.calls[0].end == "closed")


def test_a_role_chunk_is_no_first_token(provider: FakeProvider) -> None:
    provider.push(Reply(chunks=["", Silence()]))
    _, error = asyncio.run(timed(openai_model(provider.url, FIRST_TOKEN_TIMEOUT=0.3)))
    assert "first token" in str(error)


def test_reasoning_is_a_first_token(provider: FakeProvider) -> None:
    thought = b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}\n\n'
    provider.push(Reply(chunks=[Raw(thought), Silence(0.4), "done"]))
    heard = asyncio.run(hear(openai_model(provider.url, FIRST_TOKEN_TIMEOUT=0.3, TOKEN_TIMEOUT=5)))
    assert (heard.text, heard.error) == ("done", None)


def test_silence_between_tokens(provider: FakeProvider) -> None:
    provider.push(Reply(chunks=["one", " two", Silence()]))
    model = openai_model(provider.url, FIRST_TOKEN_TIMEOUT=9, TOKEN_TIMEOUT=0.3)
    start = time.monotonic()
    heard = asyncio.run(hear(model))
    assert heard.text == "one two"
    assert isinstance(heard.error, APITimeoutError)
    assert "no bytes for 0.3 s in the middle of the answer" in str(heard.error)
    assert 0.25 < time.monotonic() - start < 2
    provider.wait_until(lambda: provider.calls[0].end == "closed")


def test_a_slow_live_stream_is_kept(provider: FakeProvider) -> None:
    """Longer than any limit in all, but never silent for long; comments are a sign of life too."""
    ping: list[Step] = [Silence(0.15), Raw(b": ping\n\n")]
    provider.push(Reply(chunks=["one", *ping, *ping, *ping, " two", *ping, " three"]))
    heard = asyncio.run(hear(openai_model(provider.url, FIRST_TOKEN_TIMEOUT=0.4, TOKEN_TIMEOUT=0.4)))
    assert (heard.text, heard.error) == ("one two three", None)


def test_a_slow_reader_is_not_a_silent_provider(provider: FakeProvider) -> None:
    provider.push(Reply(chunks=["one", " two"]))
    model = openai_model(provider.url, TOKEN_TIMEOUT=0.1)

    async def read() -> str:
        text = ""
        async for delta in stream_deltas(model, CallRequest(HELLO, None, CallParams(), "c")):
            if isinstance(delta, TextDelta):
                text += delta.text
                await provider.wait_until_async(lambda: provider.calls[0].end == "answered")
                await asyncio.sleep(0.15)  # the reader is the slow part here
        return text

    assert asyncio.run(read()) == "one two"


def test_no_connection() -> None:
    async def closed_port() -> tuple[float, ProviderError]:
        async with wire_server(lambda _, __: asyncio.sleep(0)) as url:
            pass
        return await timed(openai_model(url))

    _, error = asyncio.run(closed_port())
    assert type(error) is UnavailableError
    assert error.retryable
    assert "no connection" in str(error)


def test_a_connection_that_takes_too_long() -> None:
    """A port that accepts nobody: the listener's queue is full."""
    import socket

    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:
            client.setblocking(False)
            client.connect_ex(address)
        model = openai_model(f"http://127.0.0.1:{address[1]}/v1", CONNECT_TIMEOUT=0.3)
        seconds, error = asyncio.run(timed(model))
        for client in waiting:
            client.close()
    assert isinstance(error, APITimeoutError)
    assert "no connection within 0.3 s" in str(error)
    assert seconds < 2


@pytest.mark.parametrize("whole", [False, True])
def test_a_dropped_connection(provider: FakeProvider, whole: bool) -> None:
    provider.push(Reply(instead="reset"))
    _, error = asyncio.run(timed(openai_model(provider.url), whole=whole))
    assert type(error) is UnavailableError
    assert error.retryable


def test_a_server_that_does_not_speak_http() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    async def run() -> ProviderError:
        async with wire_server(talk) as url:
            return (await timed(openai_model(url)))[1]

    assert "no HTTP answer" in str(asyncio.run(run()))


def test_a_body_shorter_than_announced() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{"choices"')

    async def run() -> ProviderError:
        async with wire_server(talk) as url:
            return (await timed(openai_model(url), whole=True))[1]

    assert isinstance(asyncio.run(run()), StreamCutError)


@pytest.mark.parametrize("chunks", [[Silence()], ["one", Silence()]])
def test_cancelling_closes_the_connection(provider: FakeProvider, chunks: list[Any]) -> None:
    """S16: before the first token and in the middle."""
    provider.push(Reply(chunks=chunks))

    async def run() -> None:
        task = asyncio.create_task(hear(openai_model(provider.url)))
        await provider.wait_until_async(
            lambda: bool(provider.calls) and provider.calls[0].chunks == len(chunks) - 1
        )
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        start = time.monotonic()
        await provider.wait_until_async(lambda: provider.calls[0].end == "closed")
        assert time.monotonic() - start < 1

    asyncio.run(run())


def test_cancelling_a_whole_call_closes_the_connection(provider: FakeProvider) -> None:
    provider.push(Reply(instead="silence"))

    async def run() -> None:
        task = asyncio.create_task(ask(openai_model(provider.url)))
        await provider.wait_until_async(lambda: len(provider.calls) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await provider.wait_until_async(lambda: provider.calls[0].end == "closed", 1)

    asyncio.run(run())


def test_leaving_a_stream_closes_the_connection(provider: FakeProvider) -> None:
    provider.push(Reply(chunks=["one", Silence()]))

    async def run() -> None:
        model = openai_model(provider.url)
        async with aclosing(stream_deltas(model, CallRequest(HELLO, None, CallParams(), "c"))) as deltas:
            assert await anext(deltas) == TextDelta("one")
        await provider.wait_until_async(lambda: provider.calls[0].end == "closed", 1)

    asyncio.run(run())


def test_connections_are_kept() -> None:
    """Streams, whole answers, errors and redirects hand their connection on."""
    opened = 0
    answers = [
        (b"200 OK", STREAM),
        (b"500 Oh", b'{"error":{"message":"no"}}'),
        (b"307 Go", b""),
    ]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        for number in range(100):
            await read_request(reader)
            status, body = answers[number % len(answers)]
            writer.write(b"HTTP/1.1 %b\r\ntransfer-encoding: chunked\r\n\r\n" % status)
            if body:
                writer.write(b"%x\r\n%b\r\n" % (len(body), body))
            await writer.drain()
            await asyncio.sleep(0)  # the end of the body comes in a packet of its own
            writer.write(b"0\r\n\r\n")

    async def run() -> None:
        async with wire_server(talk) as url:
            model = openai_model(url)
            for _ in range(6):
                await hear(model)
            await model.aclose()

    asyncio.run(run())
    assert opened == 1


def test_a_reply_that_does_not_end_holds_nobody_up() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(STREAM), STREAM)
        )
        await reader.read()

    async def run() -> float:
        async with wire_server(talk) as url:
            start = time.monotonic()
            heard = await hear(openai_model(url))
            assert (heard.text, heard.error) == ("a", None)
            return time.monotonic() - start

    assert asyncio.run(run()) < 1


def test_a_thousand_calls_at_once() -> None:
    """No ceiling: all of them are with the provider before the first is answered."""
    with FakeProvider(default=Reply(chunks=[Gate("all"), "yes"])) as provider:

        async def run() -> None:
            model = openai_model(provider.url)
            tasks = [asyncio.create_task(hear(model)) for _ in range(1000)]
            await provider.wait_until_async(lambda: provider.calls.running == 1000, 60)
            provider.open("all")
            assert {heard.text for heard in await asyncio.gather(*tasks)} == {"yes"}

        uvloop.run(run())
        assert provider.calls.peak_concurrency == 1000


def test_several_event_loops_one_after_another(provider: FakeProvider) -> None:
    """Nothing is left open at the end of a loop: every warning is an error here."""
    model = openai_model(provider.url)
    for run in (asyncio.run, uvloop.run, asyncio.run):
        heard = run(hear(model))
        assert heard.error is None
        assert not model.transport._pools
    gc.collect()


def test_several_event_loops_at_once(provider: FakeProvider) -> None:
    model = openai_model(provider.url)
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(asyncio.run(hear(model)).text)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 8
    assert all(texts)


def test_a_forgotten_loop_is_let_go(provider: FakeProvider) -> None:
    model = openai_model(provider.url)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(ask(model))
    loop.run_until_complete(model.aclose())
    loop.close()
    gone = weakref.ref(loop)
    del loop
    asyncio.run(ask(model))
    gc.collect()
    assert gone() is None


def test_closing_and_calling_again(provider: FakeProvider) -> None:
    model = openai_model(provider.url)

    async def run() -> None:
        await ask(model)
        await model.aclose()
        await model.aclose()
        await ask(model)

    asyncio.run(run())
    assert provider.calls.total == 2


def test_a_dropped_model_closes_its_connections() -> None:
    async def run() -> None:
        closed = asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(json_reply("hello"))
            await reader.read()
            closed.set()

        async with wire_server(talk) as url:
            model = openai_model(url)
            assert (await ask(model)).text == "hello"
            del model
            gc.collect()
            await asyncio.wait_for(closed.wait(), 5)

    asyncio.run(run())


def test_models_can_share_connections(provider: FakeProvider) -> None:
    settings = AIForgeSettings.load(OPENAI_API_KEY=KEY, OPENAI_BASE_URL=provider.url)
    transport = Transport()
    models = [create_model(settings, model=name, transport=transport) for name in ("gpt-4o", "gpt-4.1")]
    assert [model.transport for model in models if isinstance(model, OpenAIChat)] == [transport, transport]


def test_nothing_is_said_at_the_end_of_a_script(provider: FakeProvider) -> None:
    script = f"""
from aiforge.core.providers import create_model
from aiforge.core.settings import AIForgeSettings
model = create_model(AIForgeSettings.load(OPENAI_API_KEY="k", OPENAI_BASE_URL={provider.url!r}))
print(model.invoke("hello").content)
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip()
    assert done.stderr == ""


def test_proxy_variables(provider: FakeProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        seen.append(head.split(b"\r\n")[0])
        writer.write(
            b'HTTP/1.1 200 OK\r\ncontent-length: 45\r\n\r\n{"choices":[{"message":{"content":"proxied"}}]}'[
                :0
            ]
        )
        writer.write(json_reply("through the proxy"))

    async def run() -> str:
        async with wire_server(talk) as url:
            monkeypatch.setenv("http_proxy", url.removesuffix("/v1"))
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            text = (await ask(openai_model("http://models.invalid/v1"))).text
            await ask(openai_model(provider.url))
            return text

    assert asyncio.run(run()) == "through the proxy"
    assert seen == [b"POST http://models.invalid/v1/chat/completions HTTP/1.1"]
    assert provider.calls.total == 1


def test_a_proxy_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(ConfigError, match="socks5"):
        asyncio.run(ask(openai_model("http://models.invalid/v1")))


def test_a_ca_file_is_trusted_instead(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", key, "-out", cert, "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(cert, key)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(json_reply("trusted"))
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=server_side)
        async with server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
            assert (await ask(openai_model(url, CA_FILE=cert))).text == "trusted"
            with pytest.raises(UnavailableError, match="no trusted connection") as caught:
                await ask(openai_model(url))
            assert not caught.value.retryable

    asyncio.run(run())


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_ca_file_that_cannot_be_used(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="AIFORGE_CA_FILE"):
        openai_model("http://localhost/v1", CA_FILE=path)


def test_large_requests(provider: FakeProvider) -> None:
    """Past a megabyte aiohttp would warn of bytes given at once."""
    provider.push(Reply(text="read"))
    message = "x" * (2 * 1024 * 1024)
    assert asyncio.run(ask(openai_model(provider.url), [{"role": "user", "content": message}])).text == "read"
    assert provider.calls[0].question == message
