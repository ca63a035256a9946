"""What a Redis URL names: one server, the nodes of a cluster, or a service that Sentinels watch over.

    redis://[user:password@]host:port/0                          rediss:// with TLS, unix:// for a socket
    redis+cluster://[user:password@]host:port,host:port          rediss+cluster:// with TLS
    redis+sentinel://[user:password@]host:port,host:port/service/0

Of a cluster's nodes and of Sentinels any that answers will do. User, password and what stands behind a `?`
belong to the servers; Sentinels with a password of their own are given `?sentinel_password=…`, and
`sentinel_username`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

Kind = Literal["server", "cluster", "sentinel"]

CLUSTERS: Final = ("redis+cluster://", "rediss+cluster://")
SENTINELS: Final = ("redis+sentinel://", "rediss+sentinel://")
SERVERS: Final = ("redis://", "rediss://", "unix://")
_PORTS: Final = {"cluster": 6379, "sentinel": 26379}
_SENTINELS_OWN: Final = "sentinel_"


class Address(NamedTuple):
    """Where a server or a Sentinel listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Topology:
    """A URL taken apart; `addresses` are none for one server, whose URL is enough."""

    kind: Kind
    url: str
    addresses: tuple[Address, ...] = ()
    service: str = ""
    """The name under which Sentinels know the servers."""
    database: int = 0

    def at(self, address: Address) -> str:
        """The URL of one of the servers."""
        parts = urlsplit(self.url)
        user, mark, _ = parts.netloc.rpartition("@")
        query = urlencode([pair for pair in self._options if not pair[0].startswith(_SENTINELS_OWN)])
        return f"{self._scheme}://{user}{mark}{address}/{self.database}" + (f"?{query}" if query else "")

    def sentinel_at(self, address: Address) -> str:
        """The URL of one of the Sentinels."""
        own = {
            name.removeprefix(_SENTINELS_OWN): quote(value, safe="")
            for name, value in self._options
            if name.startswith(_SENTINELS_OWN)
        }
        login = f"{own.get('username', '')}:{own['password']}@" if "password" in own else ""
        tls = urlencode(self.tls)
        return f"{self._scheme}://{login}{address}" + (f"?{tls}" if tls else "")

    @property
    def tls(self) -> dict[str, str]:
        """What is said of TLS, as redis-py names it."""
        return {name: value for name, value in self._options if name.startswith("ssl_")}

    @property
    def secure(self) -> bool:
        return self._scheme == "rediss"

    @property
    def _scheme(self) -> str:
        return urlsplit(self.url).scheme.partition("+")[0]

    @property
    def _options(self) -> list[tuple[str, str]]:
        return parse_qsl(urlsplit(self.url).query, keep_blank_values=True)


def topology_of(url: str) -> Topology:
    """Raises ValueError saying what is wrong with a URL that names none."""
    if url.startswith(CLUSTERS):
        return _cluster(url)
    if url.startswith(SENTINELS):
        return _sentinel(url)
    return Topology("server", url)


def _cluster(url: str) -> Topology:
    if urlsplit(url).path.strip("/") not in ("", "0"):
        raise ValueError("a cluster has no database but 0")
    return Topology("cluster", url, _addresses(url, "cluster"))


def _sentinel(url: str) -> Topology:
    service, _, database = urlsplit(url).path.strip("/").partition("/")
    if not service:
        raise ValueError("names the service behind the Sentinels, as in redis+sentinel://host:26379/mymaster")
    if not (database or "0").isdecimal():
        raise ValueError(f"names its database by a number, unlike {database!r}")
    return Topology("sentinel", url, _addresses(url, "sentinel"), service, int(database or 0))


def _addresses(url: str, kind: str) -> tuple[Address, ...]:
    found = []
    for place in urlsplit(url).netloc.rpartition("@")[2].split(","):
        parts = urlsplit(f"//{place}")
        if not parts.hostname:
            what = "Sentinel" if kind == "sentinel" else "node"
            raise ValueError(f"names each {what} as host:port, separated by commas")
        found.append(Address(parts.hostname, parts.port or _PORTS[kind]))
    return tuple(found)
