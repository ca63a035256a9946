"""The API on a real socket, on a real server of its own namespace."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
import pytest

from api.__main__ import Server
from api.app import create_app
from api.settings import ApiSettings
from api.state import Service
from tests.api import worker
from tests.support.servers import RedisServer
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.service import url as url_of


@dataclass
class Api:
    """A running API, a client for it, and the way past it to the store."""

    url: str
    http: httpx.AsyncClient
    store: TurnClient
    service: Service
    server: Server

    async def post(self, message: str = "Hello?", **options: Any) -> dict[str, Any]:
        """Post a turn; `conversation` names its conversation, other options are fields of the body."""
        conversation = options.pop("conversation", None)
        path = f"/v1/conversations/{conversation}/turns" if conversation else "/v1/turns"
        reply = await self.http.post(path, json={"message": message, **options})
        assert reply.status_code == 202, reply.text
        posted: dict[str, Any] = reply.json()
        return posted

    async def answered(self, message: str, answer: str, **options: Any) -> dict[str, Any]:
        """Post a turn and answer it."""
        posted = await self.post(message, **options)
        await (await worker.claim(self.store, posted["turn_id"])).answer(answer)
        return posted


class Start(Protocol):
    async def __call__(self, **settings: Any) -> Api: ...


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with RedisServer() as server:
        yield server.url


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def start(redis_url: str) -> AsyncIterator[Start]:
    """Starts an API with the settings that a test gives; all are stopped after it."""
    async with contextlib.AsyncExitStack() as stack:

        async def starting(**settings: Any) -> Api:
            known = {
                "redis_url": redis_url,
                "namespace": f"test-{secrets.token_hex(6)}",
                "log_level": "error",
            }
            return await stack.enter_async_context(_running(ApiSettings(**{**known, **settings})))

        yield starting


@pytest.fixture
async def api(start: Start) -> Api:
    return await start()


@contextlib.asynccontextmanager
async def _running(settings: ApiSettings) -> AsyncIterator[Api]:
    sock = socket.create_server(("127.0.0.1", 0))
    async with await TurnClient.connect(settings) as client:
        app = create_app(settings, client)
        server = Server(app, sock)
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        await eventually(lambda: server.started or serving.done())
        url = url_of(sock)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as http:
            yield Api(url, http, client, app.state.service, server)
        server.should_exit = True
        await serving
