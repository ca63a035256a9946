"""One connection, many commands: each caller gets its own replies, whatever happens to the others."""

from __future__ import annotations

import asyncio
import gc
from itertools import count
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError  # noqa: A004

from tests.support.proxy import Fate, Proxy
from tests.support.servers import RedisServer
from tests.support.waiting import eventually
from worker.contract.server.connection import Connection
from worker.contract.server.link import Link

pytestmark = pytest.mark.anyio


@pytest.fixture
async def link(server: RedisServer) -> Any:
    link = Link(Connection(server.url).open)
    yield link
    await link.close()


def connections(server: RedisServer) -> int:
    return len(server.ask("CLIENT", "LIST").splitlines())


async def test_a_thousand_commands_share_one_connection(link: Link, server: RedisServer) -> None:
    asked = [[("ECHO", f"{number}.{part}") for part in range(number % 4 + 1)] for number in range(1_000)]
    before = connections(server)
    replies = await asyncio.gather(*(link.ask(commands) for commands in asked))
    assert replies == [[text.encode() for _, text in commands] for commands in asked]
    assert connections(server) - before == 1


async def test_an_error_is_one_reply_among_others(link: Link) -> None:
    first, error, last = await link.ask([("ECHO", 1), ("EVALSHA", "0" * 40, 0), ("ECHO", 1.5)])
    assert (first, last) == (b"1", b"1.5")
    assert isinstance(error, ResponseError)


async def test_who_gives_up_takes_nobody_elses_reply(link: Link) -> None:
    lost = [asyncio.create_task(link.ask([("ECHO", "lost")])) for _ in range(50)]
    kept = [asyncio.create_task(link.ask([("ECHO", number)])) for number in range(50)]
    await link.ask([("ECHO", "both are sent")])
    more = [asyncio.create_task(link.ask([("ECHO", "lost")])) for _ in range(50)]
    await asyncio.sleep(0)
    for task in (*lost, *more):
        task.cancel()
    assert [(await task)[0] for task in kept] == [str(number).encode() for number in range(50)]
    assert await link.ask([("ECHO", "after")]) == [b"after"]


class Mute:
    """A connection that cannot send."""

    is_connected = True

    async def send_packed_command(self, *_command: Any, **_options: Any) -> None:
        raise ConnectionError("broken pipe")

    async def read_response(self, **_options: Any) -> None:
        await asyncio.Event().wait()

    async def disconnect(self, **_options: Any) -> None:
        self.is_connected = False


async def test_what_cannot_be_sent_is_told_to_its_caller_alone() -> None:
    async def opened() -> Mute:
        return Mute()

    loop, told = asyncio.get_running_loop(), list[str]()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _loop, context: told.append(context["message"]))
    link = Link(opened)
    with pytest.raises(ConnectionError, match="broken pipe"):
        await link.ask([("PING",)])
    await link.close()
    del link
    gc.collect()
    loop.set_exception_handler(before)
    assert told == [], "nobody asks the lost reply how it ended, which asyncio would log"


async def test_a_broken_connection_fails_all_who_wait_and_is_made_anew(server: RedisServer) -> None:
    async with Proxy(server.port) as proxy:
        link, dropped = Link(Connection(proxy.url).open), list[bytes]()
        assert await link.ask([("ECHO", 1)]) == [b"1"]

        def fate(frame: bytes) -> Fate:
            dropped.append(frame)
            return "drop"

        proxy.fate = fate
        waiting = [asyncio.create_task(link.ask([("ECHO", number)])) for number in range(20)]
        await eventually(lambda: len(dropped) == 40)
        link.drop()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(end) for end in ends} == {ConnectionError}
        proxy.fate = lambda _frame: "pass"
        assert await link.ask([("ECHO", 2)]) == [b"2"]
        await link.close()


@pytest.mark.parametrize("lost", range(6))
async def test_a_swallowed_reply_shifts_no_other(lost: int, server: RedisServer) -> None:
    async with Proxy(server.port) as proxy:
        link, numbers = Link(Connection(proxy.url).open), count()
        assert await link.ask([("ECHO", "connected")]) == [b"connected"]
        proxy.fate = lambda _frame: "drop" if next(numbers) == lost else "pass"
        asking = [asyncio.create_task(link.ask([("ECHO", text)])) for text in ("a", "b", "c")]
        _, waiting = await asyncio.wait(asking, timeout=0.2)
        for task in waiting:
            task.cancel()
        link.drop()
        ends = await asyncio.gather(*asking, return_exceptions=True)
        for end, text in zip(ends, (b"a", b"b", b"c"), strict=True):
            assert end == [text] or isinstance(end, (ConnectionError, asyncio.CancelledError))
        assert any(end != [text] for end, text in zip(ends, (b"a", b"b", b"c"), strict=True))
        await link.close()
