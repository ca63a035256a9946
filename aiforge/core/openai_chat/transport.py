"""The one place that speaks HTTP to an OpenAI-compatible provider; nothing else knows aiohttp.

Proxy variables are read here and not by aiohttp's `trust_env`, which asks for them in a thread and
reads `~/.netrc` again for every request.
"""

from __future__ import annotations

import asyncio
import functools
import io
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from pydantic import SecretStr

from aiforge.core.deltas import CALL_ID_HEADER
from aiforge.core.per_loop import PerLoop
from aiforge.core.types import APITimeoutError, ConfigError, ProviderError, StreamCutError, UnavailableError

MAX_REPLY_BYTES: Final = 64 * 1024 * 1024
KEEP_ALIVE_SECONDS: Final = 30.0
LAST_BYTES_SECONDS: Final = 0.1
"""How long the end of a finished reply is waited for, so that its connection can serve again."""
_DIRECT_BODY_BYTES: Final = 1024 * 1024
"""aiohttp warns of larger bodies given as bytes, because they are written in one go."""


class Limits(msgspec.Struct, frozen=True):
    """Time limits of one call, in seconds."""

    connect: float
    first_token: float
    token: float


class Reply:
    """A reply whose headers are here; its body is read as it comes.

    Two silences end it with APITimeoutError: `first_token` seconds from the request until `begun`
    is called, then `token` seconds without a byte. One timer watches both. It only counts while
    somebody waits for bytes, so a slow reader is never taken for a silent provider.
    """

    __slots__ = ("_due", "_limits", "_loop", "_response", "_timer", "_waiting", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, limits: Limits, started: float) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._waiting: float | None = None
        self._due: float | None = started + limits.first_token
        self._timer = self._loop.call_at(self._due, self._look)

    async def read(self) -> bytes:
        """The next bytes as they come, b"" at the end."""
        self._waiting = self._loop.time()
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise StreamCutError(
                f"the connection broke in the middle of the answer ({_name(error)})"
            ) from None
        finally:
            self._waiting = None

    async def read_all(self, limit: int = MAX_REPLY_BYTES) -> bytes:
        """The rest of the body, at most about `limit` bytes of it."""
        parts: list[bytes] = []
        size = 0
        while size < limit and (data := await self.read()):
            if not parts and not self._response.content.at_eof():
                self.begun()
            parts.append(data)
            size += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def begun(self) -> None:
        """The answer is flowing: from now on only silence between bytes counts."""
        if self._due is not None:
            self._due = None
            self._timer.cancel()
            self._timer = self._loop.call_later(self._limits.token, self._look)

    async def finish(self) -> None:
        """Give the connection back if the reply really ends, which it does at once or not at all."""
        if not self._response.content.at_eof():
            with suppress(TimeoutError, ProviderError):
                async with asyncio.timeout(LAST_BYTES_SECONDS):
                    while await self.read():
                        pass

    def close(self) -> None:
        """Close the connection now, unless it was given back."""
        self._timer.cancel()
        self._response.close()

    def _look(self) -> None:
        now = self._loop.time()
        waiting = now if self._waiting is None else self._waiting
        due = waiting + self._limits.token if self._due is None else self._due
        if now < due or self._waiting is None:
            self._timer = self._loop.call_at(max(due, now + 0.05), self._look)
            return
        if self._due is None:
            text = f"no bytes for {self._limits.token:g} s in the middle of the answer"
        else:
            text = f"no first token within {self._limits.first_token:g} s"
        self._response.content.set_exception(APITimeoutError(text))
        self._response.close()


class Transport:
    """Sends requests, with one pool of kept-alive connections for each event loop.

    May be shared by any number of models.
    """

    def __init__(self, ca_file: Path | None = None) -> None:
        trusted: ssl.SSLContext | bool = True
        if ca_file is not None:
            try:
                trusted = ssl.create_default_context(cafile=str(ca_file))
            except OSError as error:
                reason = error.strerror or "it holds no certificate"
                raise ConfigError(f"AIFORGE_CA_FILE: {ca_file} cannot be used: {reason}") from None
        self._pools = PerLoop(functools.partial(_session, trusted), aiohttp.ClientSession.close)
        self._proxies: dict[str, str | None] = {}

    async def post(self, url: str, *, key: SecretStr, call_id: str, body: bytes, limits: Limits) -> Reply:
        """Send JSON and wait for the reply's headers; redirects are replies. The caller closes the reply.

        Raises APITimeoutError, UnavailableError or ProviderError.
        """
        session = await self._pools.get()
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(started + limits.first_token):
                response = await session.post(
                    url,
                    data=body if len(body) < _DIRECT_BODY_BYTES else io.BytesIO(body),
                    # Built in place: no variable ever holds the key, so no traceback can show it.
                    headers={
                        "authorization": f"Bearer {key.get_secret_value()}",
                        "content-type": "application/json",
                        CALL_ID_HEADER: call_id,
                    },
                    proxy=self._proxy(url),
                    allow_redirects=False,
                    timeout=_timeout(limits.connect),
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            failure = _translated(error, limits)
        else:
            return Reply(response, limits, started)
        # Raised out here: aiohttp's frames know the key, and an error's context keeps its frames.
        raise failure

    async def get(self, url: str, *, key: SecretStr | None, seconds: float) -> bytes | None:
        """The body at `url`, None for whatever is no success within `seconds`. Nothing is repeated."""
        session = await self._pools.get()
        try:
            async with (
                asyncio.timeout(seconds),
                session.get(
                    url,
                    headers={"authorization": f"Bearer {key.get_secret_value()}"} if key else None,
                    proxy=self._proxy(url),
                    allow_redirects=False,
                ) as response,
            ):
                return await response.read() if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    async def aclose(self) -> None:
        """Close the connections of the running event loop; a later call opens new ones."""
        await self._pools.aclose()

    def _proxy(self, url: str) -> str | None:
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self._proxies:
            proxies = getproxies()
            proxy = proxies.get(parts.scheme) or proxies.get("all")
            if proxy and not proxy.startswith(("http://", "https://")):
                proxy = f"http://{proxy}" if "://" not in proxy else proxy
                if not proxy.startswith("http://"):
                    raise ConfigError(f"a {proxy.split(':')[0]} proxy cannot be used, only http and https")
            self._proxies[origin] = None if not proxy or proxy_bypass(parts.netloc) else proxy
        return self._proxies[origin]


def _session(trusted: ssl.SSLContext | bool) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=trusted, ttl_dns_cache=60
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"accept-encoding": "identity", "user-agent": "aiforge"},
    )


@functools.lru_cache(maxsize=16)
def _timeout(connect: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None, connect=connect)


def _translated(error: Exception, limits: Limits) -> ProviderError:
    """What went wrong before the reply's headers. None of these texts quotes headers."""
    for cls, translate in _TRANSLATIONS:
        if isinstance(error, cls):
            return translate(error, limits)
    return ProviderError(f"no HTTP answer ({_name(error)})")


_TRANSLATIONS: Final[tuple[tuple[type[Exception], Callable[[Any, Limits], ProviderError]], ...]] = (
    (
        aiohttp.ConnectionTimeoutError,
        lambda _, limits: APITimeoutError(f"no connection within {limits.connect:g} s"),
    ),
    (
        TimeoutError,
        lambda _, limits: APITimeoutError(f"no first token within {limits.first_token:g} s, nor headers"),
    ),
    (aiohttp.ClientHttpProxyError, lambda error, _: UnavailableError(f"the proxy answered {error.status}")),
    (
        aiohttp.ClientSSLError,
        lambda error, _: UnavailableError(f"no trusted connection: {error}", retryable=False),
    ),
    (aiohttp.ClientConnectorError, lambda error, _: UnavailableError(f"no connection: {error}")),
    (aiohttp.InvalidURL, lambda _, __: ProviderError("the base URL is not a URL")),
    (
        aiohttp.ClientConnectionError,
        lambda error, _: UnavailableError(f"the connection broke before an answer ({_name(error)})"),
    ),
    (OSError, lambda error, _: UnavailableError(f"the connection broke before an answer ({_name(error)})")),
)
"""The first class that fits decides; the narrower ones stand first."""


def _name(error: Exception) -> str:
    return type(error).__name__
