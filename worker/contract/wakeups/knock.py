"""Wake-ups from the event loop that asks for them, where the broker is a Redis: no thread, no Celery.

Celery's own sender blocks for half a millisecond and needs a thread, whose turn comes late in a busy
process. The worker's transport takes of a message only what is written here, so nothing else is sent.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import logging
import uuid
from typing import Any, Final

import msgspec

from worker.contract.errors import ContractError
from worker.contract.keys import Keys
from worker.contract.queues import TASKS, lane_of, queue
from worker.contract.schemas import Lane
from worker.contract.server.connection import Connection
from worker.contract.server.link import Argument
from worker.contract.settings import ContractSettings

ROUND: Final = 500
"""Messages of one script call."""
_log = logging.getLogger(__name__)


class Knocker:
    """Fire and forget: a wake-up that cannot be sent is found missing by the reaper. Of one event loop.

    No more wait on the lane of batches than one batch's window has slices.
    """

    def __init__(self, settings: ContractSettings) -> None:
        prefix = Keys(settings.namespace).broker_prefix()
        self._names = {lane: queue(settings.namespace, lane) for lane in Lane}
        self._keys = {lane: prefix + name for lane, name in self._names.items()}
        self._longest = {Lane.CHAT: 0, Lane.BATCH: settings.batch_window}
        self._connection = Connection(settings.broker)
        self._waiting: dict[Lane, list[bytes]] = {}
        self._sending: asyncio.Task[None] | None = None

    def wake(self, work: str, *, times: int = 1) -> None:
        """Ask for a worker to look at a turn or batch; returns at once."""
        lane = lane_of(work)
        messages = self._waiting.setdefault(lane, [])
        messages += [message(work, TASKS[lane], self._names[lane]) for _ in range(times)]
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="wake-ups")

    async def close(self) -> None:
        """Send what is waiting, then stop."""
        if self._sending is not None:
            await self._sending
        await self._connection.close()

    async def depth(self) -> dict[Lane, int]:
        """How many wake-ups wait in each lane; Unavailable when the broker does not answer."""
        lengths = await self._connection.commands([("LLEN", key) for key in self._keys.values()])
        return dict(zip(self._keys, lengths, strict=True))

    def _arguments(self, lane: Lane, messages: list[bytes]) -> list[Argument]:
        return [self._longest[lane], *messages]

    async def _send(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            calls = [
                ("wake", [self._keys[lane]], self._arguments(lane, messages[start : start + ROUND]))
                for lane, messages in waiting.items()
                for start in range(0, len(messages), ROUND)
            ]
            try:
                await self._connection.run_many(calls)
            except ContractError as error:
                count = sum(map(len, waiting.values()))
                _log.warning("wake_ups_not_sent", extra={"count": count, "reason": type(error).__name__})


class Bell(Knocker):
    """A Knocker of one event loop that is rung from any thread."""

    def __init__(self, settings: ContractSettings, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(settings)
        self._loop = loop

    def wake(self, work: str, *, times: int = 1) -> None:
        self._loop.call_soon_threadsafe(functools.partial(super().wake, work, times=times))


def message(work: str, task: str, routing_key: str) -> bytes:
    """A wake-up as the transport reads it."""
    identifier = str(uuid.uuid4())
    content: dict[str, Any] = {
        "body": base64.b64encode(msgspec.json.encode(((work,), {}, {}))).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"id": identifier, "task": task, "argsrepr": f"({work[:14]}…)"},
        "properties": {
            "correlation_id": identifier,
            "delivery_tag": identifier,
            "delivery_info": {"exchange": "", "routing_key": routing_key},
            "body_encoding": "base64",
            "priority": 0,
        },
    }
    return msgspec.json.encode(content)
