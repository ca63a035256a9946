"""Kombu's Redis transport with one client for each channel.

The stock transport makes a new client for every message that is sent, delivered or acknowledged, which
costs more than the message: redis-py fills a table of all its commands each time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final

from kombu.transport import redis as stock
from redis.backoff import NoBackoff
from redis.retry import Retry

PATHS: Final = {
    "server": "worker.contract.wakeups.carrier:Transport",
    "sentinel": "worker.contract.wakeups.carrier:SentinelTransport",
}
"""What Celery's `broker_transport` setting takes, by what the broker's URL names."""


class Channel(stock.Channel):
    """Its client takes a connection from the channel's pool for each command, as those of the stock did."""

    @cached_property
    def _shared_client(self) -> Any:
        return super()._create_client()  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        yield client or self._shared_client


class SentinelChannel(Channel, stock.SentinelChannel):
    """Asks a Sentinel once before it asks the next: redis-py's client would try for seconds."""

    sentinel_kwargs: dict[str, Any]

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        self.sentinel_kwargs = {**self.sentinel_kwargs, "retry": Retry(NoBackoff(), 0)}
        return super()._sentinel_managed_pool(asynchronous)  # type: ignore[no-untyped-call]


class Transport(stock.Transport):
    Channel = Channel


class SentinelTransport(stock.SentinelTransport):
    Channel = SentinelChannel
