"""Kombu's AMQP transport, hardened as the one for Redis is: a message has no authority.

Of a message on a lane only what makes a wake-up is taken, of one to the worker's control only what can be
read; the rest is counted and dropped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import msgspec
from kombu.transport import pyamqp as stock

from aiforge.core.content import is_deeper
from worker.broker.transport import CONTROL_DEPTH, LANES, asked, drop, headers_of

PATHS: Final = {"amqps": "worker.broker.rabbit:SSLTransport", "amqp": "worker.broker.rabbit:Transport"}
"""What Celery's `broker_transport` setting takes, by the scheme of the broker's URL."""
_JSON: Final = "application/json"
_UTF8: Final = (None, "utf-8")
_Callback = Callable[[Any], None]


def path(url: str) -> str:
    """The transport for a broker's URL."""
    return PATHS["amqps" if url.startswith("amqps") else "amqp"]


class Channel(stock.Channel):
    """Looks at each message before anything else does."""

    def basic_consume(
        self, queue: str = "", *arguments: Any, callback: _Callback, no_ack: bool = False, **options: Any
    ) -> Any:
        look = _wake_up if queue.endswith(LANES) else _control
        deliver = functools.partial(self._deliver, look, callback, no_ack)
        return super().basic_consume(queue, *arguments, callback=deliver, no_ack=no_ack, **options)

    def _deliver(
        self, look: Callable[[Any], str | None], callback: _Callback, no_ack: bool, message: Any
    ) -> None:
        problem = look(message)
        if problem is None:
            callback(message)
            return
        drop(problem)
        if not no_ack:
            self.basic_ack(message.delivery_tag)


class Connection(stock.Connection):
    Channel = Channel


class Transport(stock.Transport):
    Connection = Connection


class SSLTransport(stock.SSLTransport):
    Connection = Connection


def _wake_up(message: Any) -> str | None:
    """Why a message is no wake-up; of one that is, only what makes it is left."""
    if message.properties.get("content_type") != _JSON:
        return "garbage"
    found = asked(message.headers, message.body)
    if isinstance(found, str):
        return found
    message.body = found.body
    message.properties = {
        "content_type": _JSON,
        "content_encoding": "utf-8",
        "correlation_id": found.identifier,
        "application_headers": headers_of(found),
    }
    return None


def _control(message: Any) -> str | None:
    """Why a control message cannot be read."""
    properties = message.properties
    if properties.get("content_type") != _JSON or properties.get("content_encoding") not in _UTF8:
        return "garbage"
    try:
        command = msgspec.json.decode(message.body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return "garbage"
    return "garbage" if is_deeper([properties, command], CONTROL_DEPTH) else None
