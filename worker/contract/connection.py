"""The one connection to Redis: scripts loaded, replies repeated safely, foreign errors translated."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from itertools import chain, repeat
from typing import Any, Final, TypeAlias

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,  # noqa: A004  # redis's own
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import TimeoutError as ConnectTimeoutError

from worker.contract.errors import Unavailable

Argument: TypeAlias = str | bytes | int | float
Reply: TypeAlias = Any

_PASSING: Final = (ConnectionError, ConnectTimeoutError, BusyLoadingError)
COMMAND_SECONDS: Final = 2.5
PATIENCE_SECONDS: Final = 3.5
"""No repetition begins later than this: with the command's own time a caller waits 6 s at most."""
WIDTH: Final = 64
"""How many commands are under way at a time. One server gets nothing done sooner with more, and a
thousand turns that end together would open as many connections, at 1.5 ms of processor each."""
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


class Connection:
    """A pool of connections of one event loop, and the scripts."""

    def __init__(self, url: str, *, timeout: float = COMMAND_SECONDS) -> None:
        """`timeout` is how many seconds one command may take, connecting included."""
        self.url = url
        self._timeout = timeout
        self.scripts = load_scripts()
        self._slots = asyncio.Semaphore(WIDTH)
        self.client: Any = redis.Redis.from_url(
            url,
            # Each command has one limit around it: redis-py's own costs a task for each send, and on
            # Python 3.11 can swallow a cancellation.
            socket_timeout=None,
            socket_connect_timeout=timeout,
            socket_keepalive=True,
            health_check_interval=15,
            retry=Retry(NoBackoff(), 0),
            max_connections=10_000,
        )

    async def close(self) -> None:
        await self.client.aclose()

    def link(self) -> Any:
        """A further connection, not connected yet and not the pool's, for one who reads what is pushed."""
        pool = self.client.connection_pool
        return pool.connection_class(**{**pool.connection_kwargs, "health_check_interval": 0})

    async def run(self, name: str, keys: Sequence[str], arguments: Sequence[Argument]) -> Reply:
        """Run a script; a passing fault is waited out for 3.5 s, then Unavailable is raised."""
        return await self._patiently(lambda: self._run(self.scripts[name], keys, arguments))

    async def command(self, *parts: Argument) -> Reply:
        """Run one read command under the same rules."""
        return await self._patiently(lambda: self.client.execute_command(*parts))

    async def commands(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """Run several read commands in one pipeline."""
        replies: list[Reply] = await self._patiently(lambda: self._read(commands))
        return replies

    async def run_many(self, calls: Sequence[tuple[str, Sequence[str], Sequence[Argument]]]) -> list[Reply]:
        """Run several scripts in one pipeline; a script's own error stands in its place."""
        replies: list[Reply] = await self._patiently(lambda: self._pipeline(calls))
        return replies

    async def _run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Reply:
        try:
            return await self.client.execute_command("EVALSHA", script.digest, len(keys), *keys, *arguments)
        except NoScriptError:
            return await self.client.execute_command("EVAL", script.text, len(keys), *keys, *arguments)

    async def _pipeline(self, calls: Sequence[tuple[str, Sequence[str], Sequence[Argument]]]) -> list[Reply]:
        pipeline = self.client.pipeline(transaction=False)
        for name, keys, arguments in calls:
            pipeline.execute_command("EVALSHA", self.scripts[name].digest, len(keys), *keys, *arguments)
        replies: list[Reply] = await pipeline.execute(raise_on_error=False)
        for index, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                name, keys, arguments = calls[index]
                replies[index] = await self._run(self.scripts[name], keys, arguments)
            elif isinstance(reply, _PASSING) or _refuses_writes(reply):
                raise reply
        return replies

    async def _read(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        pipeline = self.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Reply] = await pipeline.execute()
        return replies

    async def _patiently(self, attempt: Callable[[], Awaitable[Reply]]) -> Reply:
        limit = time.monotonic() + PATIENCE_SECONDS
        pauses = chain(_PAUSES, repeat(_PAUSES[-1]))
        while True:
            pause = next(pauses)
            try:
                async with asyncio.timeout(self._timeout), self._slots:
                    return await attempt()
            except (*_PASSING, TimeoutError) as error:
                if time.monotonic() + pause > limit:
                    why = str(error) or f"no reply within {self._timeout:g} s"
                    raise Unavailable(f"Redis at {self.shown} does not answer: {why}") from None
            except ResponseError as error:
                if _refuses_writes(error):
                    raise Unavailable(f"Redis cannot store more: {error}") from None
                raise
            await asyncio.sleep(pause)

    @property
    def shown(self) -> str:
        """The URL without its password."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"


def _refuses_writes(reply: object) -> bool:
    """Memory or disk is full, or this is a replica; also as a script's own error, which quotes the code."""
    return isinstance(reply, ResponseError) and (
        isinstance(reply, (OutOfMemoryError, ReadOnlyError))
        or any(code in str(reply) for code in ("OOM ", "MISCONF ", "NOREPLICAS "))
    )
