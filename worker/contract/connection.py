"""The one connection to Redis: scripts loaded, replies repeated safely, foreign errors translated."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from itertools import chain, repeat
from typing import Any, Final
from urllib.parse import urlsplit

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,  # noqa: A004  # redis's own
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import TimeoutError as ConnectTimeoutError

from worker.contract.errors import Unavailable
from worker.contract.link import Argument, Link, Reply, checked

_PASSING: Final = (ConnectionError, ConnectTimeoutError, BusyLoadingError, ClusterDownError, TryAgainError)
"""Of Redis's own errors those that say: not now. A master that is down is a cluster that is."""
_BUSY: Final = "BUSY "
"""How the error begins that every command gets while somebody's script runs; redis-py has no class for it."""
COMMAND_SECONDS: Final = 2.5
PATIENCE_SECONDS: Final = 3.5
"""No repetition begins later than this: with the command's own time a caller waits 6 s at most."""
_PAUSES: Final = (0.05, 0.2, 0.5, 1.0)
"""Seconds before each repetition, the last one again and again; every script can be repeated, so a
lost reply is asked for again."""


class Script:
    """One Lua script with its prelude and digest."""

    __slots__ = ("digest", "name", "text")

    def __init__(self, name: str, prelude: str, body: str) -> None:
        self.name = name
        self.text = f"{prelude}\n{body}"
        self.digest = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def load_scripts() -> dict[str, Script]:
    """Every script of the contract by its name."""
    texts = {
        path.name.removesuffix(".lua"): path.read_text(encoding="utf-8")
        for path in files("worker.contract").joinpath("scripts").iterdir()
        if path.name.endswith(".lua")
    }
    prelude = texts.pop("prelude")
    return {name: Script(name, prelude, body) for name, body in texts.items()}


def check_url(url: str) -> None:
    """Raises ValueError when this URL cannot say where a Redis is."""
    path = urlsplit(url).path.strip("/")
    if path and not url.startswith("unix:") and not path.isdecimal():
        raise ValueError(f"names its database by a number, unlike {path!r}")
    try:
        pool: Any = redis.ConnectionPool.from_url(url)
        pool.make_connection()
    except TypeError as error:
        raise ValueError(str(error).partition("() ")[2]) from None


class Connection:
    """Redis for one event loop: the scripts, and reads."""

    def __init__(self, url: str, *, timeout: float = COMMAND_SECONDS) -> None:
        """`timeout` is how many seconds one command may take, connecting included."""
        self.url = url
        self._timeout = timeout
        self.scripts = load_scripts()
        # Each command has one limit around it: redis-py's own costs a task for each send, and on
        # Python 3.11 can swallow a cancellation.
        pool: Any = redis.ConnectionPool.from_url(
            url,
            socket_timeout=None,
            socket_connect_timeout=timeout,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
        )
        self.link: Callable[[], Any] = pool.make_connection
        """Makes a further connection, not connected yet, for one who reads what is pushed."""
        self._link = Link(self.link)

    async def close(self) -> None:
        await self._link.close()

    async def run(self, name: str, keys: Sequence[str], arguments: Sequence[Argument]) -> Reply:
        """Run a script; a passing fault is waited out for 3.5 s, then Unavailable is raised."""
        (reply,) = await self.run_many([(name, keys, arguments)])
        return checked(reply)

    async def command(self, *parts: Argument) -> Reply:
        """Run one read command under the same rules."""
        (reply,) = await self.commands([parts])
        return reply

    async def commands(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """Run several read commands in one pipeline."""
        return await self._patiently(lambda: self._ask(commands))

    async def run_many(self, calls: Sequence[tuple[str, Sequence[str], Sequence[Argument]]]) -> list[Reply]:
        """Run several scripts in one pipeline; a script's own error stands in its place."""
        return await self._patiently(lambda: self._run(calls))

    async def _run(self, calls: Sequence[tuple[str, Sequence[str], Sequence[Argument]]]) -> list[Reply]:
        replies = await self._link.ask(
            ("EVALSHA", self.scripts[name].digest, len(keys), *keys, *arguments)
            for name, keys, arguments in calls
        )
        for index, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                name, keys, arguments = calls[index]
                (replies[index],) = await self._link.ask(
                    [("EVAL", self.scripts[name].text, len(keys), *keys, *arguments)]
                )
        for reply in replies:
            if _passes(reply) or _refuses_writes(reply):
                raise reply
        return replies

    async def _ask(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        return [checked(reply) for reply in await self._link.ask(commands)]

    async def _patiently(self, attempt: Callable[[], Awaitable[list[Reply]]]) -> list[Reply]:
        limit = time.monotonic() + PATIENCE_SECONDS
        pauses = chain(_PAUSES, repeat(_PAUSES[-1]))
        while True:
            pause = next(pauses)
            try:
                async with asyncio.timeout(self._timeout):
                    return await attempt()
            except (*_PASSING, ResponseError, TimeoutError) as error:
                if isinstance(error, TimeoutError):
                    self._link.drop()
                elif _refuses_writes(error):
                    raise Unavailable(f"Redis cannot store more: {error}") from None
                elif not _passes(error):
                    raise
                if time.monotonic() + pause > limit:
                    why = str(error) or f"no reply within {self._timeout:g} s"
                    raise Unavailable(f"Redis at {self.shown} does not answer: {why}") from None
            await asyncio.sleep(pause)

    @property
    def shown(self) -> str:
        """The URL without its password."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"


def _passes(reply: object) -> bool:
    """Whether this is an error that a repetition may not meet again."""
    return isinstance(reply, _PASSING) or (isinstance(reply, ResponseError) and str(reply).startswith(_BUSY))


def _refuses_writes(reply: object) -> bool:
    """Memory or disk is full, or this is a replica; also as a script's own error, which quotes the code."""
    return isinstance(reply, ResponseError) and (
        isinstance(reply, (OutOfMemoryError, ReadOnlyError))
        or any(code in str(reply) for code in ("OOM ", "MISCONF ", "NOREPLICAS "))
    )
