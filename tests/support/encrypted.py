"""Redis behind TLS in each of its three forms: one server, a cluster, Sentinels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aiforge.core.topology import Kind
from tests.support.certificates import Certificates
from tests.support.cluster import RedisCluster
from tests.support.sentinel import Watched
from tests.support.servers import RedisServer


@dataclass(frozen=True, slots=True)
class Encrypted:
    """Where turns are and where Celery's messages are, and whose signature their certificates carry."""

    url: str
    broker_url: str
    authority: Path


@contextlib.contextmanager
def encrypted(kind: Kind, folder: Path) -> Iterator[Encrypted]:
    """Debian's Redis, which speaks TLS; a lone server also asks for its client's certificate."""
    tls = Certificates.make(folder)
    with contextlib.ExitStack() as stack:
        match kind:
            case "server":
                server = stack.enter_context(
                    RedisServer("redis", options={"tls-auth-clients": "yes"}, tls=tls)
                )
                url = f"{server.url}&ssl_certfile={tls.certificate}&ssl_keyfile={tls.key}"
                yield Encrypted(url, url, tls.authority)
            case "sentinel":
                watched = stack.enter_context(Watched("redis", tls=tls))
                yield Encrypted(watched.url, watched.url, tls.authority)
            case "cluster":
                broker = stack.enter_context(RedisServer("redis", tls=tls))
                cluster = stack.enter_context(RedisCluster("redis", tls=tls))
                yield Encrypted(cluster.url, broker.url, tls.authority)
