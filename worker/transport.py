"""Kombu's Redis transport, hardened: no message and no full Redis can end a worker.

The stock transport raises out of the event hub on a message that is not JSON or not an object, and
when Redis is at its memory limit. Neither matters here, because a message has no authority.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import redis as stock
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from worker import metrics

PATH = "worker.transport:Transport"
"""What Celery's `broker_transport` setting takes."""


class Channel(stock.Channel):
    """Drops what is not JSON."""

    def _brpop_read(self, **options: Any) -> bool:
        try:
            return bool(super()._brpop_read(**options))
        except ValueError:
            metrics.DROPPED.labels("garbage").inc()
            return True


class Transport(stock.Transport):
    """Drops what is not a message; treats a Redis that refuses writes as one that is away."""

    Channel = Channel
    connection_errors = (*stock.Transport.connection_errors, OutOfMemoryError, ReadOnlyError)

    def _deliver(self, message: Any, queue: str) -> None:
        if _is_message(message):
            super()._deliver(message, queue)
        else:
            metrics.DROPPED.labels("garbage").inc()


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or "body" not in message:
        return False
    properties = message.get("properties")
    return (
        isinstance(properties, dict)
        and isinstance(message.get("headers"), dict)
        and isinstance(properties.get("delivery_tag"), str)
        and isinstance(properties.get("delivery_info"), dict)
    )
