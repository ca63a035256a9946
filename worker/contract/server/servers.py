"""Opens connections to the servers that a URL names, wherever they are at the moment."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode, urlsplit

import redis.asyncio as redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError  # noqa: A004  # redis's own

from aiforge.core.topology import Address, Topology

Live: TypeAlias = Any
"""A redis-py connection that is connected."""
Open = Callable[[], Awaitable[Live]]

SENTINEL_SECONDS: Final = 0.7
"""How long one Sentinel may take before the next is asked; a command has 2.5 s for all of it."""
NODE_SECONDS: Final = 1.0
"""How long one node of a cluster may take to say who holds which slots."""


_BROKEN: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_NAMELESS: Final = (None, b"", b"?")
"""How a node is listed that does not know its own address."""


class UnknownService(ConnectionError):
    """No Sentinel knows a service of this name."""


class TLSFault(ConnectionError):
    """The two sides do not agree about TLS: a certificate that is not trusted, or no TLS at all."""


def tls_fault(error: BaseException) -> str | None:
    """What is wrong with TLS, where that is behind an error; a connection that only broke is not."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted ({seen.verify_message}); see ssl_ca_certs in the URL"
        if isinstance(seen, ssl.SSLError) and not isinstance(seen, _BROKEN):
            return f"TLS fails: {(seen.reason or str(seen)).replace('_', ' ').lower()}"
        seen = seen.__cause__ or seen.__context__
    return None


def place_of(url: str) -> str:
    """Host and port of a URL, without passwords."""
    return urlsplit(url).netloc.rpartition("@")[2]


def tls_options(topology: Topology) -> dict[str, Any]:
    """What a URL says of TLS as redis-py takes it, nothing where it says nothing of it."""
    said: dict[str, Any] = dict(parse_url(f"rediss://host/?{urlencode(topology.tls)}"))
    return {name: value for name, value in said.items() if name.startswith("ssl_")}


def opener(url: str, timeout: float) -> Open:
    """Opens connections to one server; connecting may take `timeout` seconds."""
    # Each command has one limit around it: redis-py's own costs a task for each send, and on
    # Python 3.11 can swallow a cancellation.
    pool: Any = redis.ConnectionPool.from_url(
        url,
        socket_timeout=None,
        socket_connect_timeout=timeout,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),
    )

    async def opening() -> Live:
        live = pool.make_connection()
        try:
            await live.connect()
        except BaseException as error:
            await live.disconnect(nowait=True)
            if isinstance(error, Exception) and (fault := tls_fault(error)):
                raise TLSFault(f"{place_of(url)}: {fault}") from None
            raise
        return live

    return opening


def primary_opener(topology: Topology, timeout: float) -> Open:
    """Opens connections to whichever server the Sentinels call the primary and is one."""

    async def opening() -> Live:
        live = await opener(topology.at(await primary(topology)), timeout)()
        try:
            role, *_ = await _asked(live, "ROLE")
        except BaseException:
            await live.disconnect(nowait=True)
            raise
        if role != b"master":
            await live.disconnect(nowait=True)
            raise ConnectionError("the server that Sentinel names is a replica still")
        return live

    return opening


async def primary(topology: Topology) -> Address:
    """Where the Sentinels see the primary. Raises ConnectionError, UnknownService when they know none."""
    why: Exception = UnknownService(f"Sentinel knows no service {topology.service!r}")
    for sentinel in random.sample(topology.addresses, len(topology.addresses)):
        try:
            found = await _ask_sentinel(topology, sentinel, "GET-MASTER-ADDR-BY-NAME")
        except (RedisError, OSError, TimeoutError) as error:
            why = _because(f"Sentinel at {sentinel}", error)
            continue
        if found:
            return Address(found[0].decode(), int(found[1]))
    raise why


async def members(topology: Topology) -> list[str]:
    """The URLs of all servers that data is on or may come to be on, primaries first."""
    match topology.kind:
        case "server":
            return [topology.url]
        case "sentinel":
            first = await primary(topology)
            return [topology.at(place) for place in (first, *await _replicas(topology))]
        case "cluster":
            why: Exception = ConnectionError("no node answers")
            for node in topology.addresses:
                try:
                    ranges = await _ask_once(topology.at(node), NODE_SECONDS, "CLUSTER", "SLOTS")
                except (ConnectionError, OSError, TimeoutError) as error:
                    why = _because(str(node), error)
                    continue
                rows = [nodes_of(row, node) for row in ranges]
                found = [row[0] for row in rows] + [place for row in rows for place in row[1:]]
                return [topology.at(place) for place in dict.fromkeys(found)]
            raise why


def nodes_of(row: Any, asked: Address) -> list[Address]:
    """The nodes of one range of CLUSTER SLOTS, the primary first; one without a name is the one asked."""
    return [
        Address(host.decode() if host not in _NAMELESS else asked.host, port) for host, port, *_ in row[2:]
    ]


def _because(place: str, error: Exception) -> ConnectionError:
    """A fault of TLS stays one."""
    return error if isinstance(error, TLSFault) else ConnectionError(f"{place}: {str(error) or 'no reply'}")


async def _replicas(topology: Topology) -> list[Address]:
    for sentinel in topology.addresses:
        try:
            rows = await _ask_sentinel(topology, sentinel, "REPLICAS")
        except (RedisError, OSError, TimeoutError):
            continue
        fields = [
            row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True)) for row in rows
        ]
        return [
            Address(field[b"ip"].decode(), int(field[b"port"]))
            for field in fields
            if b"down" not in field[b"flags"] and b"disconnected" not in field[b"flags"]
        ]
    return []


async def _ask_sentinel(topology: Topology, sentinel: Address, question: str) -> Any:
    url = topology.sentinel_at(sentinel)
    return await _ask_once(url, SENTINEL_SECONDS, "SENTINEL", question, topology.service)


async def _ask_once(url: str, seconds: float, *command: str) -> Any:
    async with asyncio.timeout(seconds):
        live = await opener(url, seconds)()
        try:
            return await _asked(live, *command)
        finally:
            # TLS takes a moment to say goodbye, in which the event loop must not be gone.
            await live.disconnect()


async def _asked(live: Live, *command: str) -> Any:
    await live.send_command(*command, check_health=False)
    return await live.read_response()
