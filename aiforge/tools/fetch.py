"""HTTP for tools: a model chooses what is fetched, so what can be reached and how much comes is limited."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from typing import Any, Final

import aiohttp

USER_AGENT: Final = "aiforge"
MOST_REDIRECTS: Final = 5


class NotPublicError(OSError):
    """The address is one of this machine or of its own networks."""


def _public_only(address: tuple[Any, ...]) -> socket.socket:
    """Make the socket of a connection; the address is what the name resolved to, so no name can lie."""
    family, kind, protocol, _, where = address
    found = ipaddress.ip_address(where[0].split("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    if not (mapped or found).is_global or found.is_multicast:
        raise NotPublicError(f"{where[0]} is not a public address")
    return socket.socket(family, kind, protocol)


async def fetch(
    url: str,
    *,
    most: int,
    seconds: float,
    private: bool,
    params: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """The body that GET `url` gives, at most `most` bytes of it.

    `private` also allows addresses that are not public. Raises ValueError, with a text for the
    model, on everything that goes wrong.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is not an http or https address")
    connector = aiohttp.TCPConnector(socket_factory=None if private else _public_only)
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.get(
                url,
                params=params,
                headers={"User-Agent": USER_AGENT, **(headers or {})},
                max_redirects=MOST_REDIRECTS,
            ) as response,
        ):
            if response.status != 200:
                raise ValueError(f"{response.url.host} answers {response.status} {response.reason}")
            return await _body(response, most)
    except TimeoutError:
        raise ValueError(f"{url!r} did not answer within {seconds:g} s") from None
    except (aiohttp.ClientError, asyncio.IncompleteReadError, OSError) as error:
        raise ValueError(f"{url!r} cannot be fetched: {error or type(error).__name__}") from None


async def _body(response: aiohttp.ClientResponse, most: int) -> bytes:
    body = bytearray()
    async for piece in response.content.iter_chunked(65_536):
        body += piece
        if len(body) > most:
            raise ValueError(f"the answer has more than {most} bytes")
    return bytes(body)
