"""An OpenAI-compatible provider that does what a test tells it, over real HTTP.

    with FakeProvider(rate_limited(0.1), "Hello") as provider:
        ...                                  # a client with base_url=provider.url
    assert [call.status for call in provider.calls] == [429, 200]

A call is answered by the first rule that fits, else the next reply of the script, else the default, else
some words about the question. The server runs on a thread of its own (`with`), on the caller's loop
(`async with`), or as a process (`python -m aiforge.testing`), where `GET /calls`, `POST /script`,
`POST /open` and `POST /reset` stand for the attribute and the methods.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from aiforge.core.types import ConfigError
from aiforge.testing.calls import CallLog
from aiforge.testing.playbook import Answer, Playbook
from aiforge.testing.routes import Access, Routes
from aiforge.testing.script import Faults, Reply, Rule, Script

_BACKLOG = 4096
_GRACE_SECONDS = 0.1


class FakeProvider:
    """The provider server. Durations are in seconds.

    `script` answers the first calls, one each; `default` all others. Without them an answer is `tokens`
    words about the question, after `latency`, each word `chunk_gap` after the one before, and `faults`
    strike. `models` are listed, and with any given all others are refused with 404; with `api_key` another
    key is refused with 401; `strict` refuses message lists that OpenAI would refuse, with 400.
    `keep_calls` bounds the call log. Port 0 is any free one; one that cannot be had raises ConfigError.
    """

    def __init__(
        self,
        *script: Answer,
        default: Answer | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        latency: float = 0.0,
        tokens: int = 20,
        chunk_gap: float = 0.0,
        faults: Faults | None = None,
        models: Sequence[str] = (),
        api_key: str | None = None,
        strict: bool = False,
        seed: int = 0,
        keep_calls: int | None = None,
    ) -> None:
        self.calls = CallLog(keep_calls)
        """What was asked and sent."""
        self.host = host
        self.port = port
        self._playbook = Playbook(script, default, tokens=tokens, faults=faults, seed=seed)
        access = Access(tuple(models), api_key, strict)
        self._routes = Routes(self.calls, self._playbook, access, latency=latency, gap=chunk_gap)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._thread: threading.Thread | None = None
        self._leave = asyncio.Event()
        self._broken: Exception | None = None

    @property
    def root(self) -> str:
        """The server's own address, such as `http://127.0.0.1:8080`."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The base URL for clients: `…/v1`."""
        return f"{self.root}/v1"

    def push(self, *answers: Answer) -> None:
        """Add to the end of the script."""
        self._on_loop(lambda: self._playbook.push(answers))

    def when(self, contains: str, reply: Reply | str, *, times: int | None = None) -> None:
        """Answer calls whose last user message contains this text, the first `times` of them."""
        made = Reply(text=reply) if isinstance(reply, str) else reply
        self._on_loop(lambda: self._playbook.add(Rule(contains=contains, reply=made, times=times)))

    def extend(self, script: Script) -> None:
        """Take a whole script, as `POST /script` does."""
        self._on_loop(lambda: self._playbook.extend(script))

    def open(self, gate: str) -> None:
        """Let the streams that wait at this gate go on, and those that come to it later."""
        self._on_loop(lambda: self._routes.gate(gate).set())

    def reset(self) -> None:
        """Back to the beginning: the first script and default, no rules, gates closed, an empty log."""
        self._on_loop(self._routes.reset)

    def wait_until(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Block until a condition on `calls` is true; TimeoutError says what the log holds."""
        if not self.calls.wait(condition, seconds):
            last = [(call.number, call.status, call.chunks, call.end) for call in self.calls][-5:]
            raise TimeoutError(
                f"not true after {seconds} s: {self.calls.total} calls, {self.calls.running} running, "
                f"last (number, status, chunks, end): {last}"
            )

    async def wait_until_async(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """`wait_until` for code on an event loop."""
        await asyncio.to_thread(self.wait_until, condition, seconds)

    async def start(self) -> None:
        """Listen, on the running loop."""
        loop = asyncio.get_running_loop()
        server = web.Server(
            self._routes.serve, request_factory=_request, handler_cancellation=True, access_log=None
        )
        try:
            self._listener = await loop.create_server(server, self.host, self.port, backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError(f"cannot listen on {self.host} port {self.port}: {error.strerror}") from None
        self._loop, self._server = loop, server
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Break off what runs and close every connection."""
        assert self._listener is not None
        assert self._server is not None
        self._listener.close()
        await self._routes.stop()
        self._server.pre_shutdown()
        await self._server.shutdown(_GRACE_SECONDS)
        await self._listener.wait_closed()
        self._loop = None

    def __enter__(self) -> Self:
        listening = threading.Event()
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._live(listening),), name="fake-provider", daemon=True
        )
        self._thread.start()
        listening.wait()
        if self._broken is not None:
            self._thread.join()
            raise self._broken
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._on_loop(self._leave.set)
        self._thread.join()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _live(self, listening: threading.Event) -> None:
        try:
            await self.start()
        except ConfigError as error:
            self._broken = error
            return
        finally:
            listening.set()
        await self._leave.wait()
        await self.stop()

    def _on_loop(self, act: Callable[[], object]) -> None:
        """Run on the server's loop, and return when it has run."""
        if self._loop is None or self._loop is _running_loop():
            act()
            return
        done = threading.Event()

        def run() -> None:
            act()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _request(
    message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]
) -> web.BaseRequest:
    """A request without a limit on its body."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=0)
