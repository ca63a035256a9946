"""Kombu's Redis transport, hardened: no message and no full Redis can end a worker.

A message has no authority, so of one on a lane only what makes a wake-up is taken: its id, its task and
the id of a turn or batch. Times, callbacks and whatever else Celery would obey are left behind, and what
is no wake-up is counted and dropped. The stock transport raises out of the event hub on a message that is
not JSON, not an object or nested without end, and when Redis is at its memory limit.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from typing import Any, Final, Literal

import msgspec
from kombu.transport import redis as stock
from kombu.utils.scheduling import priority_cycle
from redis.exceptions import OutOfMemoryError, ResponseError

from aiforge.core.content import is_deeper
from worker import metrics
from worker.contract.queues import TASKS
from worker.contract.schemas import Lane
from worker.contract.wakeups import carrier

PATHS: Final = {
    "server": "worker.broker.transport:Transport",
    "sentinel": "worker.broker.transport:SentinelTransport",
}
"""What Celery's `broker_transport` setting takes, by what the broker's URL names."""
LANES: Final = tuple(f".{lane}" for lane in Lane)
"""How the names of the lanes' queues end."""
CONTROL_DEPTH: Final = 32
"""How deep a control message may be nested: what one parser only just reads can be too much for the next."""


class _Where(msgspec.Struct, frozen=True):
    exchange: str
    routing_key: str


class _Properties(msgspec.Struct, frozen=True):
    delivery_tag: str
    delivery_info: _Where
    body_encoding: Literal["base64"]
    priority: int = 0


class _Control(msgspec.Struct, frozen=True, rename={"content_type": "content-type"}):
    """What kombu takes apart of a control message before anybody can refuse it."""

    body: str
    headers: dict[str, Any]
    properties: _Properties
    content_type: Literal["application/json"]


class _Headers(msgspec.Struct, frozen=True):
    id: str
    task: str


class _Message(msgspec.Struct, frozen=True, rename={"content_type": "content-type"}):
    body: str
    headers: _Headers
    properties: _Properties
    content_type: Literal["application/json"]


_Body = tuple[tuple[str], dict[str, Any], Any]
"""Positional arguments, keyword arguments, and what Celery would do afterwards."""


class Asked(msgspec.Struct, frozen=True):
    """What is left of a wake-up: its id, its task, and the turn or batch that it names."""

    identifier: str
    task: str
    work: str

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(((self.work,), {}, {}))


class QoS(stock.QoS):
    """Acknowledges what has ended since the last look at the sockets in one round trip, not in one each.

    It lets go of messages whose connection was lost, where kombu raises what ends the worker. What they
    asked for runs on; Redis gives them out again after the visibility timeout, to no effect.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._acked: list[str] = []
        self._lanes: dict[str, str] = {}

    def append(self, message: Any, delivery_tag: str) -> None:
        super().append(message, delivery_tag)
        self._lanes[delivery_tag] = message.delivery_info["routing_key"]

    def taken(self, lane: str) -> int:
        """How many of a lane's messages have not ended."""
        return sum(1 for other in self._lanes.values() if other == lane)

    def ack(self, delivery_tag: str) -> None:
        self._lanes.pop(delivery_tag, None)
        if self._connected:
            self._acked.append(delivery_tag)
            self._quick_ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        self._lanes.pop(delivery_tag, None)
        if self._connected:
            super().reject(delivery_tag, requeue=requeue)

    def can_consume(self) -> bool:
        """The transport asks this before every look at the sockets."""
        self._forget_acked()
        return bool(super().can_consume())

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Called when the channel closes."""
        if self._connected:
            with contextlib.suppress(*self.channel.connection_errors):
                self._forget_acked()
        super().restore_unacked_once(stderr)

    def restore_unacked(self, client: Any = None) -> None:
        if self._connected:
            super().restore_unacked(client)
        else:
            self._delivered.clear()

    def _forget_acked(self) -> None:
        if self._acked:
            tags, self._acked = self._acked, []
            with self.channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
                pipe.zrem(self.unacked_index_key, *tags).hdel(self.unacked_key, *tags).execute()

    @property
    def _connected(self) -> bool:
        transport = self.channel.connection
        return transport is not None and transport.client is not None


class _Cycle(priority_cycle):
    """The queues to ask, in order, without the lanes that have their part of the slots."""

    def __init__(self, channel: Any) -> None:
        super().__init__()
        self._channel = channel

    def consume(self, n: int) -> list[str]:
        most, found = self._channel.each_lane, super().consume(n)
        return [name for name in found if not most or self._channel.qos.taken(name) < most]


class Channel(carrier.Channel):
    """Drops what is not JSON, on queues and from whoever publishes.

    Of a lane it has at most `each_lane` messages at a time, 0 is any number: where the worker has a few slots
    more, a batch that fills its part never keeps a chat waiting.
    """

    QoS = QoS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.each_lane = int(self.connection.client.transport_options.get("each_lane", 0))
        self._queue_cycle = _Cycle(self)

    def _do_restore_message(self, payload: Any, exchange: str, routing_key: str, *rest: Any) -> None:
        """Wake-ups of batches do not go back: what they woke goes on or is woken anew, and with them the lane
        would grow longer than a window."""
        if not routing_key.endswith(f".{Lane.BATCH}"):
            super()._do_restore_message(payload, exchange, routing_key, *rest)

    def _brpop_read(self, **options: Any) -> bool:
        try:
            return bool(super()._brpop_read(**options))
        except (ValueError, RecursionError):
            drop("garbage")
            return True

    def _receive_one(self, client: Any) -> bool:
        try:
            return bool(super()._receive_one(client))
        except RecursionError:
            drop("garbage")
            return False


class SentinelChannel(Channel, carrier.SentinelChannel):
    """The same, of the primary that Sentinels name."""


class Transport(carrier.Transport):
    """Drops what is not a message; treats a Redis that answers with an error as one that is away."""

    Channel = Channel
    connection_errors = (*stock.Transport.connection_errors, ResponseError)

    def _deliver(self, message: Any, queue: str) -> None:
        if not queue.endswith(LANES):
            if _is_control(message):
                super()._deliver(message, queue)
            else:
                drop("garbage")
            return
        taken = wake_up(message)
        if isinstance(taken, str):
            drop(taken)
            return
        try:
            super()._deliver(taken, queue)
        except OutOfMemoryError:
            # It cannot be noted as delivered. The reaper finds that its work waits.
            drop("redis_full")


class SentinelTransport(Transport, carrier.SentinelTransport):
    """The same behind Sentinels; after a failover it connects to the new primary."""

    Channel = SentinelChannel


def wake_up(message: Any) -> dict[str, Any] | str:
    """The message with only what a wake-up is made of, or why it is none."""
    try:
        given = msgspec.convert(message, _Message)
        body = base64.b64decode(given.body, validate=True)
    except (msgspec.MsgspecError, binascii.Error, RecursionError):
        return "garbage"
    found = asked(given.headers, body)
    if isinstance(found, str):
        return found
    properties = given.properties
    return {
        "body": base64.b64encode(found.body).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers_of(found),
        "properties": {
            "correlation_id": found.identifier,
            "delivery_tag": properties.delivery_tag,
            "delivery_info": msgspec.to_builtins(properties.delivery_info),
            "priority": properties.priority,
            "body_encoding": "base64",
        },
    }


def asked(headers: Any, body: bytes | str) -> Asked | str:
    """What a message's headers and body ask for, or why they are no wake-up."""
    try:
        known = msgspec.convert(headers, _Headers)
        (work,), named, _ = msgspec.json.decode(body, type=_Body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return "garbage"
    if known.task not in TASKS.values():
        return "unknown_task"
    return "garbage" if named else Asked(known.id, known.task, work)


def headers_of(found: Asked) -> dict[str, Any]:
    """The headers that Celery reads; the representation for people is shortened."""
    return {
        "id": found.identifier,
        "task": found.task,
        "root_id": found.identifier,
        "argsrepr": f"({found.work[:14]}…)",
        "ignore_result": True,
    }


def _is_control(message: Any) -> bool:
    """Whether everything that is read before a control command is looked up can be read."""
    try:
        given = msgspec.convert(message, _Control)
        command = msgspec.json.decode(base64.b64decode(given.body, validate=True), type=dict[str, Any])
    except (msgspec.MsgspecError, binascii.Error, RecursionError):
        return False
    return not is_deeper([message, command], CONTROL_DEPTH)


def drop(reason: str) -> None:
    """Count a message that is dropped."""
    metrics.DROPPED.labels(reason).inc()
