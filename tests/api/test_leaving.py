"""S16: a caller who leaves before the end, with a real worker and a provider that sees it leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.types import Message

from aiforge.core.events import Event, Queued
from aiforge.testing import FakeProvider, Reply, Silence
from api.sse import EventStream, Streams
from tests.api.conftest import Api, Start
from tests.api.sse import opened
from tests.support.processes import Start as StartProcess
from tests.support.servers import RedisServer
from tests.support.waiting import eventually
from worker.contract.errors import Unavailable

pytestmark = pytest.mark.anyio
STREAMED = {"Accept": "text/event-stream"}
CANCEL = "/v1/conversations/c/turns?on_disconnect=cancel"
BODY = {"message": "Hello?"}


@pytest.fixture
async def service(
    start: Start, server: RedisServer, namespace: str, worker_process: StartProcess, provider: FakeProvider
) -> Api:
    """An API, and a worker that runs one turn at a time."""
    worker_process(concurrency="1")
    provider.when("after", "I am free.")
    return await start(redis_url=server.url, namespace=namespace)


async def leave_a_stream(api: Api, provider: FakeProvider, tokens: int, path: str = CANCEL) -> str:
    """Post a turn, read until so many tokens came, and go; the turn's id."""
    provider.push(Reply(chunks=[*("one ", "two ")[:tokens], Silence()]))
    async with opened(api.http, "POST", path, json=BODY, headers=STREAMED) as stream:
        turn_id = stream.response.headers["x-turn-id"]
        for _ in range(tokens):
            while (event := await stream.next()) is not None and event.event != "token":
                pass
        await eventually(lambda: len(provider.calls) == 1)
    return turn_id


async def leave_a_wait(api: Api, provider: FakeProvider) -> str:
    provider.push(Reply(chunks=["one ", Silence()]))
    async with httpx.AsyncClient(base_url=api.url, trust_env=False, timeout=20) as caller:
        body = {**BODY, "client_message_id": "k"}
        waiting = asyncio.create_task(caller.post(f"{CANCEL}&wait=60", json=body))
        await eventually(lambda: len(provider.calls) == 1 and provider.calls[0].chunks == 1)
        waiting.cancel()
        await asyncio.wait([waiting])
    found: str = (await api.store.keyed("k", conversation_id="c")).turn_id
    return found


async def must_be_over(api: Api, provider: FakeProvider, turn_id: str, left_at: float) -> dict[str, Any]:
    """The provider's connection was closed within a second, once, and the worker's only slot is free."""
    await eventually(lambda: provider.calls[0].end != "running")
    call = provider.calls[0]
    assert call.end == "closed"
    assert call.closed is not None
    assert call.closed - left_at < 1
    turn: dict[str, Any] = (await api.http.get(f"/v1/turns/{turn_id}?wait=10")).json()
    assert turn["state"] == "cancelled"
    after = await api.http.post("/v1/conversations/c/turns?wait=20", json={"message": "after"})
    assert after.json()["answer"] == "I am free."
    assert len(provider.calls) == 2
    return turn


@pytest.mark.parametrize("tokens", [0, 2])
async def test_s16_a_stream_that_is_left_cancels_its_turn(
    service: Api, provider: FakeProvider, tokens: int
) -> None:
    turn_id = await leave_a_stream(service, provider, tokens)
    turn = await must_be_over(service, provider, turn_id, time.time())
    assert turn["answer"] == ("one two " if tokens else None)


async def test_s16_a_wait_that_is_left_cancels_its_turn(service: Api, provider: FakeProvider) -> None:
    turn_id = await leave_a_wait(service, provider)
    turn = await must_be_over(service, provider, turn_id, time.time())
    assert turn["answer"] == "one "


async def test_who_does_not_say_so_leaves_the_turn_running(service: Api, provider: FakeProvider) -> None:
    provider.push(Reply(chunks=["one ", Silence(0.5), "two"]))
    async with opened(
        service.http, "POST", "/v1/conversations/c/turns", json=BODY, headers=STREAMED
    ) as stream:
        turn_id = stream.response.headers["x-turn-id"]
        await eventually(lambda: len(provider.calls) == 1)
    turn = (await service.http.get(f"/v1/turns/{turn_id}?wait=20")).json()
    assert (turn["state"], turn["answer"]) == ("completed", "one two")


async def test_a_stream_that_was_read_to_its_end_cancels_nothing(
    service: Api, provider: FakeProvider
) -> None:
    provider.push("Done.")
    async with opened(service.http, "POST", CANCEL, json=BODY, headers=STREAMED) as stream:
        assert [event.event for event in await stream.rest()][-2:] == ["message", "done"]
        turn_id = stream.response.headers["x-turn-id"]
    waited = await service.http.post(f"{CANCEL}&wait=20", json={"message": "after"})
    assert waited.json()["state"] == "completed"
    assert (await service.http.get(f"/v1/turns/{turn_id}")).json()["state"] == "completed"


async def test_nobody_can_leave_who_does_not_wait(api: Api) -> None:
    reply = await api.http.post(CANCEL, json=BODY)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "on_disconnect")
    wrong = await api.http.post("/v1/turns?on_disconnect=stop&wait=1", json=BODY)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "on_disconnect")


async def test_a_reader_whose_stream_breaks_in_the_store_has_not_left() -> None:
    """It is asked to come back; only one that goes by itself cancels its turn."""
    over, left, sent = asyncio.Event(), [], []

    async def source() -> AsyncIterator[tuple[int, Event]]:
        yield 1, Queued()
        raise Unavailable("the store is away")

    async def receive() -> Message:
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message["more_body"]:
            over.set()
            await asyncio.sleep(0)

    async def leave() -> None:
        left.append(True)

    stream = EventStream(source(), streams=Streams(), ping_seconds=15, left=leave)
    await stream({"type": "http"}, receive, send)
    assert b"come back" in b"".join(message.get("body", b"") for message in sent)
    assert left == []
