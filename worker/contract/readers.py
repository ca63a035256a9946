"""Reading a turn's events: the log from a cursor, then what is published, every event once and in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from redis.exceptions import RedisError

from aiforge.core.events import TERMINAL_EVENTS, Event, Gap, decode
from worker.contract.connection import Connection
from worker.contract.errors import NotFound
from worker.contract.keys import Keys
from worker.contract.schemas import TERMINAL_STATES, TurnState

POLL_SECONDS: Final = 1.0
"""After this long without a published event a reader looks into the log: a lost PUBLISH costs no more."""
PAGE: Final = 1_000
BACKLOG: Final = 256
"""Published messages that a slow reader may be behind before it is sent back to the log."""

_Inbox = asyncio.Queue[bytes]


class Listener:
    """One pub/sub connection that serves all readers of an event loop."""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._idle = keys.idle()
        self._pubsub: Any = None
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._closed = False
        self._inboxes: dict[str, set[_Inbox]] = {}
        self._confirmed: dict[str, asyncio.Event] = {}

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            await self._pubsub.aclose()

    @contextlib.asynccontextmanager
    async def subscribe(self, channel: str) -> AsyncIterator[_Inbox]:
        """Messages of a channel from the moment this is entered; a full inbox drops them."""
        inbox: _Inbox = asyncio.Queue(BACKLOG)
        await self._start()
        readers = self._inboxes.setdefault(channel, set())
        readers.add(inbox)
        try:
            if channel not in self._confirmed:
                self._confirmed[channel] = asyncio.Event()
                with contextlib.suppress(RedisError, OSError):
                    await self._pubsub.subscribe(channel)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._confirmed[channel].wait(), POLL_SECONDS)
            yield inbox
        finally:
            readers.discard(inbox)
            if not readers and self._inboxes.get(channel) is readers:
                del self._inboxes[channel]
                self._confirmed.pop(channel, None)
                with contextlib.suppress(RedisError, OSError):
                    await self._pubsub.unsubscribe(channel)

    async def _start(self) -> None:
        async with self._starting:
            if self._task is None:
                self._pubsub = self._connection.client.pubsub()
                with contextlib.suppress(RedisError, OSError):
                    await self._pubsub.subscribe(self._idle)
                self._task = asyncio.create_task(self._listen(), name="listener")

    async def _listen(self) -> None:
        # redis-py can swallow a cancellation here, so the flag is looked at as well.
        while not self._closed:
            try:
                message = await self._pubsub.get_message(timeout=POLL_SECONDS)
                if message is not None:
                    self._deliver(message)
            except (RedisError, OSError, RuntimeError):
                await asyncio.sleep(POLL_SECONDS / 4)
                with contextlib.suppress(RedisError, OSError):
                    await self._pubsub.subscribe(self._idle, *self._inboxes)

    def _deliver(self, message: dict[str, Any]) -> None:
        channel = message["channel"].decode()
        if message["type"] == "subscribe":
            if channel in self._confirmed:
                self._confirmed[channel].set()
            return
        for inbox in self._inboxes.get(channel, ()):
            if not inbox.full():
                inbox.put_nowait(message["data"])


class Reader:
    """Reads turns' events for any number of callers."""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys
        self._listener = Listener(connection, keys)

    async def close(self) -> None:
        await self._listener.close()

    async def events(self, turn_id: str, tenant: str, after: int) -> AsyncIterator[tuple[int, Event]]:
        """Every event behind `after` with its sequence number, ending after the terminal one."""
        cursor, ended = after, False
        async with self._listener.subscribe(self._keys.events(turn_id)) as inbox:
            while not ended:
                async for sequence, event in self._from_log(turn_id, tenant, cursor):
                    cursor, ended = sequence, isinstance(event, TERMINAL_EVENTS)
                    yield sequence, event
                while not ended:
                    published = await _published(inbox, cursor)
                    if published is None:
                        break
                    for event in published:
                        cursor, ended = cursor + 1, isinstance(event, TERMINAL_EVENTS)
                        yield cursor, event

    async def wait(self, turn_id: str, seconds: float) -> None:
        """Return soon after the turn's end, or when the time is over."""
        state_key = self._keys.turn(turn_id)
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(seconds),
                self._listener.subscribe(self._keys.events(turn_id)) as inbox,
            ):
                while True:
                    state = await self._connection.command("HGET", state_key, "state")
                    if state is None or TurnState(state.decode()) in TERMINAL_STATES:
                        return
                    await _terminal_or_pause(inbox)

    async def _from_log(self, turn_id: str, tenant: str, after: int) -> AsyncIterator[tuple[int, Event]]:
        names = [self._keys.turn(turn_id), self._keys.log(turn_id)]
        while True:
            reply = await self._connection.run("read", names, [tenant, after, PAGE])
            if not reply:
                raise NotFound(f"turn {turn_id!r} does not exist")
            trimmed, length, state, events = reply
            if after < trimmed:
                yield trimmed, Gap(after + 1, trimmed)
                after = trimmed
            elif not events and TurnState(state.decode()) in TERMINAL_STATES:
                if length == 0:
                    raise NotFound(f"the events of turn {turn_id!r} are no longer kept")
                after = trimmed + length - 1
                continue
            for event in events:
                after += 1
                yield after, decode(event)
            if len(events) < PAGE:
                return


async def _published(inbox: _Inbox, cursor: int) -> list[Event] | None:
    """The next events behind the cursor, or None when only the log can tell."""
    while True:
        try:
            message = await asyncio.wait_for(inbox.get(), POLL_SECONDS)
        except TimeoutError:
            return None
        first, *lines = message.split(b"\n")
        skip = cursor + 1 - int(first)
        if skip < 0:
            return None
        if skip < len(lines):
            return [decode(line) for line in lines[skip:]]


async def _terminal_or_pause(inbox: _Inbox) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(POLL_SECONDS):
            while True:
                last = (await inbox.get()).rsplit(b"\n", 1)[-1]
                if isinstance(decode(last), TERMINAL_EVENTS):
                    return
