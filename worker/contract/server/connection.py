"""The one connection to Redis: scripts loaded, replies repeated safely, foreign errors translated."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qsl, urlsplit

import redis.asyncio as redis
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,  # noqa: A004  # redis's own
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import TimeoutError as ConnectTimeoutError

from aiforge.core.topology import Address, Topology, topology_of
from worker.contract.errors import Unavailable
from worker.contract.server.cluster import Cluster
from worker.contract.server.link import Argument, Link, Reply, checked
from worker.contract.server.lua import load_scripts
from worker.contract.server.servers import Open, TLSFault, opener, primary_opener

_PASSING: Final = (ConnectionError, ConnectTimeoutError, BusyLoadingError, ClusterDownError, TryAgainError)
"""Of Redis's own errors those that say: not now. A master that is down is a cluster that is."""
_BUSY: Final = "BUSY "
"""How the error begins that every command gets while somebody's script runs; redis-py has no class for it."""
COMMAND_SECONDS: Final = 2.5
LONG_SECONDS: Final = 30.0
"""What a command may take whose arguments or reply can be as long as a whole conversation."""
PATIENCE_SECONDS: Final = 3.5
"""No repetition begins later than this: with the command's own time a caller waits 6 s at most."""
_TLS_FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_PAUSES: Final = (0.05, 0.2, 0.5, 1.0)
"""Seconds before each repetition, the last one again and again; every script can be repeated, so a
lost reply is asked for again."""


def check_url(url: str) -> None:
    """Raises ValueError when this URL cannot say where a Redis is."""
    topology = topology_of(url)
    if topology.kind == "server":
        _check_server_url(url)
        return
    for address in topology.addresses:
        _check_server_url(topology.at(address))
        _check_server_url(topology.sentinel_at(address))


def _check_server_url(url: str) -> None:
    path = urlsplit(url).path.strip("/")
    if path and not url.startswith("unix:") and not path.isdecimal():
        raise ValueError(f"names its database by a number, unlike {path!r}")
    try:
        pool: Any = redis.ConnectionPool.from_url(url)
        connection = pool.make_connection()
    except TypeError as error:
        raise ValueError(str(error).partition("() ")[2]) from None
    except RedisError as error:
        raise ValueError(str(error)) from None
    if isinstance(connection, redis.SSLConnection):
        _check_tls(connection, dict(parse_qsl(urlsplit(url).query)))


def _check_tls(connection: redis.SSLConnection, said: Mapping[str, str]) -> None:
    """Raises ValueError naming what of TLS cannot be used: a file that is not there, or holds none."""
    for name in _TLS_FILES:
        if name in said and not Path(said[name]).exists():
            raise ValueError(f"{name}: there is no {said[name]}")
    try:
        connection.ssl_context.get()
    except (OSError, ValueError) as error:
        names = ", ".join(name for name in said if name.startswith("ssl_"))
        raise ValueError(f"{names}: cannot be used for TLS: {error}") from None


class Connection:
    """Redis for one event loop: the scripts, and reads."""

    def __init__(self, url: str, *, timeout: float = COMMAND_SECONDS) -> None:
        """`timeout` is how many seconds one command may take, connecting included."""
        self.url = url
        self._timeout = timeout
        self.scripts = load_scripts()
        self._topology = topology_of(url)
        self._link, self.open = _places(self._topology, timeout)

    def apart(self) -> Self:
        """Another connection to the same place, for what is so long that nobody else is to wait behind it."""
        other = copy.copy(self)
        other._timeout = max(LONG_SECONDS, self._timeout)
        other._link, other.open = _places(self._topology, other._timeout)
        return other

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
            if _passes(reply) or _refuses_writes(reply) or _forbids(reply):
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
                if isinstance(error, TimeoutError) or self._demoted(error):
                    self._link.drop()
                elif _forbids(error):
                    raise Unavailable(
                        f"Redis at {self.shown} does not let us do what we must: {error}"
                    ) from None
                elif _refuses_writes(error):
                    raise Unavailable(f"Redis cannot store more: {error}") from None
                elif not _passes(error):
                    raise
                if isinstance(error, TLSFault):
                    raise Unavailable(f"Redis at {self.shown}: {error}") from None
                if time.monotonic() + pause > limit:
                    why = str(error) or f"no reply within {self._timeout:g} s"
                    raise Unavailable(f"Redis at {self.shown} does not answer: {why}") from None
            await asyncio.sleep(pause)

    @property
    def shown(self) -> str:
        """The URL without passwords."""
        scheme, _, rest = self.url.partition("?")[0].partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"

    def _demoted(self, error: Exception) -> bool:
        """Whether a server refuses writes because another has taken over, and that one can be found."""
        return isinstance(error, ReadOnlyError) and self._topology.kind != "server"


def _places(topology: Topology, timeout: float) -> tuple[Link | Cluster, Open]:
    """What commands are asked of, and what opens a further connection for one who reads what is pushed."""
    if topology.kind == "cluster":

        def at(address: Address) -> Open:
            return opener(topology.at(address), timeout)

        cluster = Cluster(topology.addresses, at, _place_of_key)
        return cluster, cluster.open
    open_one = (
        opener(topology.url, timeout) if topology.kind == "server" else primary_opener(topology, timeout)
    )
    return Link(open_one), open_one


def _place_of_key(command: Sequence[Argument]) -> int:
    """A script's first key stands behind its digest or text and the number of its keys."""
    return 3 if command[0] in ("EVALSHA", "EVAL") else 1


def _passes(reply: object) -> bool:
    """Whether this is an error that a repetition may not meet again."""
    return isinstance(reply, _PASSING) or (isinstance(reply, ResponseError) and str(reply).startswith(_BUSY))


def _forbids(reply: object) -> bool:
    """Somebody has changed what we may do, and may change it back; also as a script's own error."""
    return isinstance(reply, ResponseError) and (
        isinstance(reply, NoPermissionError)
        or any(words in str(reply) for words in ("NOPERM ", "ACL failure", "can't run this command"))
    )


def _refuses_writes(reply: object) -> bool:
    """Memory or disk is full, or this is a replica; also as a script's own error, which quotes the code."""
    return isinstance(reply, ResponseError) and (
        isinstance(reply, (OutOfMemoryError, ReadOnlyError))
        or any(code in str(reply) for code in ("OOM ", "MISCONF ", "NOREPLICAS "))
    )
