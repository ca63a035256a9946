"""Sends wake-ups from a thread of its own: publishing blocks, and no event loop may wait for it."""

from __future__ import annotations

import asyncio
import json
import logging
import queue as queues
import threading
import uuid
from typing import Any, Final, Protocol

from celery import Celery
from kombu.exceptions import KombuError, OperationalError

from worker.contract.errors import Unavailable
from worker.contract.queues import TASKS, lane_of, queue
from worker.contract.schemas import Lane
from worker.contract.settings import ContractSettings
from worker.contract.wakeups.broker import celery_application

MAX_ROUND: Final = 500
_ID: Final = "id"
_WORK: Final = "WORK"
CLOSE_SECONDS: Final = 5.0
_log = logging.getLogger(__name__)


class Wakes(Protocol):
    """Sends wake-ups."""

    def wake(self, work: str, *, times: int = 1) -> None: ...


class Waker:
    """Fire and forget: a wake-up that cannot be sent is found missing by the reaper."""

    def __init__(self, settings: ContractSettings, application: Celery | None = None) -> None:
        self._namespace = settings.namespace
        self._application = application or celery_application(settings)
        self._messages = {lane: Message(self._application, task) for lane, task in TASKS.items()}
        with self._application.connection_for_write() as connection:
            broker = (*connection.connection_errors, *connection.channel_errors)
        self._faults = (KombuError, OperationalError, OSError, *broker)
        """Also what a broker says that is there and cannot serve."""
        self._waiting: queues.SimpleQueue[str | None] = queues.SimpleQueue()
        self._thread = threading.Thread(target=self._send_all, name="wake", daemon=True)
        self._thread.start()

    def wake(self, work: str, *, times: int = 1) -> None:
        """Ask for a worker to look at a turn or batch; returns at once."""
        for _ in range(times):
            self._waiting.put(work)

    async def close(self) -> None:
        """Send what is waiting, then stop."""
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join, CLOSE_SECONDS)
        self._application.close()

    async def depth(self) -> dict[Lane, int]:
        """How many wake-ups wait in each lane, as the broker says; Unavailable when it does not answer."""
        try:
            return await asyncio.to_thread(self._depth)
        except self._faults as error:
            raise Unavailable(f"the broker does not answer: {type(error).__name__}") from None

    def _depth(self) -> dict[Lane, int]:
        with self._application.connection_for_read() as connection:
            channel = connection.default_channel
            return {lane: _size(channel, queue(self._namespace, lane)) for lane in Lane}

    def _send_all(self) -> None:
        while (first := self._waiting.get()) is not None:
            works = [first]
            while len(works) < MAX_ROUND and not self._waiting.empty():
                following = self._waiting.get()
                if following is None:
                    self._waiting.put(None)
                    break
                works.append(following)
            try:
                self._send(works)
            except self._faults as error:
                _log.warning("wake_ups_not_sent", extra={"count": len(works), "reason": type(error).__name__})

    def _send(self, works: list[str]) -> None:
        with self._application.producer_pool.acquire(block=True) as producer, producer.batch():
            for work in works:
                lane = lane_of(work)
                self._messages[lane].publish(producer, work, queue(self._namespace, lane))


class Message:
    """The message of one task, made by Celery once: making it anew costs five times what sending does."""

    def __init__(self, application: Celery, task: str) -> None:
        made = application.amqp.as_task_v2(_ID, task, (_WORK,), {}, ignore_result=True, argsrepr=_WORK)
        self._headers = made.headers
        self._body = json.dumps(made.body)

    def publish(self, producer: Any, work: str, routing_key: str) -> None:
        """Put a wake-up for `work` on a queue; its representation for people is shortened."""
        task_id = str(uuid.uuid4())
        ids = {"id": task_id, "root_id": task_id, "argsrepr": f"({work[:14]}…)"}
        producer.publish(
            self._body.replace(_WORK, work),
            routing_key=routing_key,
            exchange="",
            content_type="application/json",
            content_encoding="utf-8",
            headers={**self._headers, **ids},
            correlation_id=task_id,
            retry=False,
        )


def _size(channel: Any, name: str) -> int:
    # Declared as the workers declare it; kombu's passive way overlooks the prefix of Redis keys.
    declared = channel.queue_declare(queue=name, durable=True, exclusive=False, auto_delete=False)
    return int(declared.message_count)
