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

PATH: Final = "worker.contract.carrier:Transport"
"""What Celery's `broker_transport` setting takes."""


class Channel(stock.Channel):
    """Its client takes a connection from the channel's pool for each command, as those of the stock did."""

    @cached_property
    def _shared_client(self) -> Any:
        return super()._create_client()  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        yield client or self._shared_client


class Transport(stock.Transport):
    Channel = Channel
