"""Event streams: every event once and in order, whenever one joins; nothing is left behind."""

from __future__ import annotations

import asyncio
import time

import pytest

from aiforge.core.events import Token
from api.sse import encode
from tests.api import worker
from tests.api.conftest import Api, Start
from tests.api.sse import Sent, events, opened
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.keys import Keys

pytestmark = pytest.mark.anyio


class Unheard(Keys):
    """Publishes where nobody listens."""

    def events(self, turn_id: str) -> str:
        return f"{super().events(turn_id)}:unheard"


async def test_the_bytes_of_a_stream(api: Api) -> None:
    posted = await api.answered("Hello?", "Hi!")
    reply = await api.http.get(f"/v1/turns/{posted['turn_id']}/events")

    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert reply.headers["x-turn-id"] == posted["turn_id"]
    assert reply.headers["x-request-id"]
    assert reply.content == (
        b": ping\n\n"
        b'id: 1\nevent: queued\ndata: {"type":"queued"}\n\n'
        b'id: 2\nevent: started\ndata: {"type":"started","attempt":1}\n\n'
        b"id: 3\nevent: message\n"
        b'data: {"type":"message","text":"Hi!","stopped":false,"iteration_limit":false}\n\n'
        b'id: 4\nevent: done\ndata: {"type":"done"}\n\n'
    )


async def test_a_posted_turn_streams_at_once(api: Api) -> None:
    async with opened(
        api.http, "POST", "/v1/turns", json={"message": "Hello?"}, headers={"Accept": "text/event-stream"}
    ) as stream:
        turn_id = stream.response.headers["x-turn-id"]
        assert stream.response.headers["location"] == f"/v1/turns/{turn_id}"
        assert await stream.next() == Sent(1, "queued", {"type": "queued"})
        assert stream.pings == 1
        running = await worker.claim(api.store, turn_id)
        assert (await stream.next() or Sent(0, "", {})).event == "started"
        await running.tokens("Hi")
        assert await stream.next() == Sent(3, "token", {"type": "token", "text": "Hi", "round": 0})
        await running.answer("Hi!")
        assert [event.event for event in await stream.rest()] == ["message", "done"]


async def test_wait_and_stream_together_are_refused(api: Api) -> None:
    reply = await api.http.post(
        "/v1/turns?wait=1", json={"message": "hi"}, headers={"Accept": "text/event-stream"}
    )
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "wait"


async def test_s1_joining_a_finished_turn_ends_in_the_terminal_event(api: Api) -> None:
    posted = await api.post()
    running = await worker.claim(api.store, posted["turn_id"])
    await running.tokens("Hi")
    await running.answer("Hi!")

    begun = time.monotonic()
    at_the_end = await events(api.http, posted["turn_id"], headers={"Last-Event-ID": "5"})
    after_three = await events(api.http, posted["turn_id"], params={"after": 3})
    assert time.monotonic() - begun < 1
    assert [event.id for event in at_the_end] == [5]
    assert at_the_end[0].event == "done"
    assert [(event.id, event.event) for event in after_three] == [(4, "message"), (5, "done")]


async def test_s2_events_that_were_published_to_nobody_arrive_all_the_same(api: Api) -> None:
    posted = await api.post()
    async with (
        await TurnClient.connect(api.service.settings) as mute,
        opened(api.http, "GET", f"/v1/turns/{posted['turn_id']}/events") as stream,
    ):
        mute.turns.keys = Unheard(api.service.settings.namespace)
        assert await stream.next() == Sent(1, *_queued())
        running = await worker.claim(mute, posted["turn_id"])
        for number in range(20):
            await running.tokens(f"{number} ")
        await running.answer("Hi!")
        async with asyncio.timeout(2):
            assert [event.id for event in await stream.rest()] == list(range(2, 25))


async def test_s6_what_is_no_longer_kept_is_an_explicit_gap(start: Start) -> None:
    api = await start(stream_keep=100)
    posted = await api.post()
    running = await worker.claim(api.store, posted["turn_id"])
    await running.tokens(*(f"{number} " for number in range(298)))
    await running.answer("Hi!")

    got = await events(api.http, posted["turn_id"], headers={"Last-Event-ID": "10"})
    assert got[0] == Sent(202, "gap", {"type": "gap", "from": 11, "to": 202})
    assert [event.id for event in got[1:]] == list(range(203, 303))


@pytest.mark.parametrize("over", [False, True])
async def test_a_cursor_ahead_of_the_log_is_refused_by_name(api: Api, over: bool) -> None:
    posted = await api.post()
    running = await worker.claim(api.store, posted["turn_id"])
    await running.tokens("Hi", "!")
    if over:
        await running.answer("Hi!")
    path = f"/v1/turns/{posted['turn_id']}/events"
    last = 6 if over else 4
    for query, headers, param in (
        ("", {"Last-Event-ID": "9999"}, "Last-Event-ID"),
        (f"?after={last + 1}", {}, "after"),
        (f"?after={2**53}", {}, "after"),
    ):
        reply = await api.http.get(path + query, headers=headers)
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_value", param)
        assert error["message"] == f"{param}: the turn's last event is {last} so far"
    if over:
        got = await events(api.http, posted["turn_id"], headers={"Last-Event-ID": str(last)})
        assert [event.id for event in got] == [last], "the terminal event again"


async def test_s8_every_resume_gets_exactly_the_rest(api: Api) -> None:
    posted = await api.post()
    running = await worker.claim(api.store, posted["turn_id"])
    await running.tokens(*(f"{number} " for number in range(1000)))
    await running.answer("Hi!")

    for after in range(0, 1004, 37):
        got = await events(api.http, posted["turn_id"], headers={"Last-Event-ID": str(after)})
        assert [event.id for event in got] == list(range(after + 1, 1005))


async def test_s8_a_live_reader_gets_each_event_once(api: Api) -> None:
    posted = await api.post()
    reading = asyncio.create_task(events(api.http, posted["turn_id"]))
    running = await worker.claim(api.store, posted["turn_id"])
    for number in range(200):
        await running.tokens(f"{number} ", "x")
    await running.answer("Hi!")

    got = await reading
    assert [event.id for event in got] == list(range(1, 405))


async def test_s10_a_failure_is_an_error_and_a_terminal_event(api: Api) -> None:
    posted = await api.post()
    running = await worker.claim(api.store, posted["turn_id"])
    await running.tokens("one ", "two ")
    await running.fail("provider_stream_cut", "the provider hung up")

    got = await events(api.http, posted["turn_id"], params={"after": 2})
    assert [event.event for event in got] == ["token", "token", "error", "failed"]
    assert got[2].data["code"] == "provider_stream_cut"
    assert got[2].data["message"] == "the provider hung up"


async def test_s13_a_silent_stream_pings_from_the_start(start: Start) -> None:
    api = await start(api_ping_seconds=0.05)
    posted = await api.post()
    async with opened(api.http, "GET", f"/v1/turns/{posted['turn_id']}/events") as stream:
        assert await stream.block() == b": ping"
        assert (await stream.block() or b"").startswith(b"id: 1\n")
        assert [await stream.block() for _ in range(3)] == [b": ping"] * 3


async def test_s18_any_text_is_one_line_for_every_reader(api: Api) -> None:
    text = "日本😀\u0085\u2028\u2029é\r\n\v\f\x1c end"
    posted = await api.post()
    running = await worker.claim(api.store, posted["turn_id"])
    await running.tokens(text)
    await running.answer(text)

    got = await events(api.http, posted["turn_id"], params={"after": 2})
    assert [event.data.get("text") for event in got] == [text, text, None]
    raw = encode(7, Token(text)).decode()
    assert len(raw.splitlines()) == 4


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "99999999999999999999"])
async def test_an_invalid_cursor_is_refused(api: Api, value: str) -> None:
    posted = await api.post()
    path = f"/v1/turns/{posted['turn_id']}/events"
    by_header = await api.http.get(path, headers={"Last-Event-ID": value})
    by_query = await api.http.get(path, params={"after": value})

    assert (by_header.status_code, by_header.json()["error"]["param"]) == (400, "Last-Event-ID")
    assert (by_query.status_code, by_query.json()["error"]["param"]) == (400, "after")


async def test_a_reader_that_leaves_leaves_nothing_behind(api: Api) -> None:
    posted = await api.post()
    before = asyncio.all_tasks()
    async with opened(api.http, "GET", f"/v1/turns/{posted['turn_id']}/events") as stream:
        assert await stream.next() == Sent(1, *_queued())
        assert len(api.service.streams) == 1
    await eventually(lambda: not len(api.service.streams) and not _of_streams(before), seconds=1)


async def test_a_draining_process_ends_its_streams_at_once(api: Api) -> None:
    posted = await api.post()
    async with opened(api.http, "GET", f"/v1/turns/{posted['turn_id']}/events") as stream:
        assert await stream.next() == Sent(1, *_queued())
        api.service.streams.drain()
        async with asyncio.timeout(1):
            assert await stream.rest() == []
    assert await _ready(api) == (503, "shutting_down")


async def test_what_is_ready_goes_out_in_one_write(api: Api) -> None:
    posted = await api.post()
    running = await worker.claim(api.store, posted["turn_id"])
    await running.tokens(*(f"{number} " for number in range(500)))
    await running.answer("Hi!")

    async with api.http.stream("GET", f"/v1/turns/{posted['turn_id']}/events") as response:
        chunks = [chunk async for chunk in response.aiter_raw()]
    assert b"".join(chunks).count(b"\n\n") == 505
    assert len(chunks) < 50


async def test_a_slow_reader_pauses_its_subscription_and_loses_nothing(api: Api) -> None:
    posted = await api.post()
    running = await worker.claim(api.store, posted["turn_id"])
    for _ in range(40):
        await running.tokens(*["x" * 10_000] * 20)
    await running.answer("Hi!")

    async with opened(api.http, "GET", f"/v1/turns/{posted['turn_id']}/events") as stream:
        assert await stream.next() == Sent(1, *_queued())
        for _ in range(200):
            await asyncio.sleep(0)
        got = await stream.rest()
    assert [event.id for event in got] == list(range(2, 805))


def _queued() -> tuple[str, dict[str, str]]:
    return "queued", {"type": "queued"}


def _of_streams(before: set[asyncio.Task[object]]) -> list[asyncio.Task[object]]:
    """Tasks of event streams that were not there before."""
    return [
        task
        for task in asyncio.all_tasks() - before
        if "EventStream" in getattr(task.get_coro(), "__qualname__", "")
    ]


async def _ready(api: Api) -> tuple[int, str]:
    reply = await api.http.get("/readyz")
    return reply.status_code, reply.json()["error"]["code"]
