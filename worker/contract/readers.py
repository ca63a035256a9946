"""Reading a turn's events: the log from a cursor, then what is published, every event once and in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from redis.exceptions import RedisError

from aiforge.core.events import TERMINAL_EVENTS, Event, Gap, RequiresAction, decode
from worker.contract.errors import NotFound
from worker.contract.keys import Keys
from worker.contract.schemas import TERMINAL_STATES, TurnState
from worker.contract.server.connection import COMMAND_SECONDS, Connection

POLL_SECONDS: Final = 1.0
"""After this long without a published event a reader looks into the log: a lost PUBLISH costs no more."""
PAGE: Final = 1_000
BEYOND: Final = 1 << 52
"""A cursor behind every log."""
SILENT_POLLS: Final = 10
"""After so many polls without a word the connection is asked whether it still stands."""
BACKLOG: Final = 256
"""Published messages that a slow reader may be behind before it is sent back to the log."""

_RESTING: Final = TERMINAL_STATES | {TurnState.REQUIRES_ACTION}
"""States in which nothing more comes, at least until a human says something."""
_Inbox = asyncio.Queue[bytes]


class Listener:
    """One connection that serves all readers of an event loop.

    Its own task alone connects it, and makes a new one after every fault: redis-py's PubSub breaks when
    one task reconnects it while another sends.
    """

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._idle = keys.idle()
        self._live: Any = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._inboxes: dict[str, set[_Inbox]] = {}
        self._confirmed: dict[str, asyncio.Event] = {}

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @contextlib.asynccontextmanager
    async def subscribe(self, channel: str) -> AsyncIterator[_Inbox]:
        """Messages of a channel from the moment this is entered; a full inbox drops them."""
        inbox: _Inbox = asyncio.Queue(BACKLOG)
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name="listener")
        readers = self._inboxes.setdefault(channel, set())
        readers.add(inbox)
        try:
            if channel not in self._confirmed:
                self._confirmed[channel] = asyncio.Event()
                await self._say("SUBSCRIBE", channel)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._confirmed[channel].wait()
            yield inbox
        finally:
            readers.discard(inbox)
            if not readers and self._inboxes.get(channel) is readers:
                del self._inboxes[channel]
                del self._confirmed[channel]
                await self._say("UNSUBSCRIBE", channel)

    async def _say(self, *command: str) -> None:
        """Send to the live connection; the next one subscribes to everything by itself."""
        if self._live is not None and self._live.is_connected:
            with contextlib.suppress(RedisError, OSError):
                await self._live.send_command(*command, check_health=False)

    async def _listen(self) -> None:
        # redis-py can swallow a cancellation, so the flag is looked at as well.
        while not self._closed:
            try:
                async with asyncio.timeout(COMMAND_SECONDS):
                    link = await self._connection.open()
            except (RedisError, OSError):
                await asyncio.sleep(POLL_SECONDS / 4)
                continue
            try:
                self._live = link
                await link.send_command("SUBSCRIBE", self._idle, *self._inboxes)
                await self._hear(link)
            except (RedisError, OSError):
                await asyncio.sleep(POLL_SECONDS / 4)
            finally:
                self._live = None
                await link.disconnect(nowait=True)

    async def _hear(self, link: Any) -> None:
        silent = 0
        while not self._closed:
            frame = await link.read_response(
                timeout=POLL_SECONDS, disconnect_on_error=False, push_request=True
            )
            if frame is not None:
                silent = 0
                self._deliver(frame)
                continue
            silent += 1
            if silent == SILENT_POLLS:
                await link.send_command("PING", check_health=False)
            elif silent > SILENT_POLLS + 3:
                return

    def _deliver(self, frame: Any) -> None:
        if not isinstance(frame, list) or frame[0] not in (b"message", b"subscribe"):
            return
        kind, channel, data = frame[0], frame[1].decode(), frame[2]
        if kind == b"subscribe":
            if channel in self._confirmed:
                self._confirmed[channel].set()
            return
        for inbox in self._inboxes.get(channel, ()):
            if not inbox.full():
                inbox.put_nowait(data)


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

    async def last(self, turn_id: str, tenant: str) -> int:
        """The number of the last event so far; raises NotFound, too when events are no longer kept."""
        trimmed, length, _, _ = await self._read(turn_id, tenant, BEYOND)
        return int(trimmed + length)

    async def wait(self, turn_id: str, seconds: float) -> None:
        """Return soon after the turn's end or question to a human, or when the time is over."""
        state_key = self._keys.turn(turn_id)
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(seconds),
                self._listener.subscribe(self._keys.events(turn_id)) as inbox,
            ):
                while True:
                    state = await self._connection.command("HGET", state_key, "state")
                    if state is None or TurnState(state.decode()) in _RESTING:
                        return
                    await _resting_or_pause(inbox)

    async def _from_log(self, turn_id: str, tenant: str, after: int) -> AsyncIterator[tuple[int, Event]]:
        while True:
            trimmed, length, state, events = await self._read(turn_id, tenant, after)
            if after < trimmed:
                yield trimmed, Gap(after + 1, trimmed)
                after = trimmed
            elif not events and TurnState(state.decode()) in TERMINAL_STATES:
                after = trimmed + length - 1
                continue
            for event in events:
                after += 1
                yield after, decode(event)
            if len(events) < PAGE:
                return

    async def _read(self, turn_id: str, tenant: str, after: int) -> tuple[int, int, bytes, list[bytes]]:
        names = [self._keys.turn(turn_id), self._keys.log(turn_id)]
        reply = await self._connection.run("read", names, [tenant, after, PAGE])
        if not reply:
            raise NotFound(f"turn {turn_id!r} does not exist")
        trimmed, length, state, events = reply
        if length == 0 and TurnState(state.decode()) in TERMINAL_STATES:
            raise NotFound(f"the events of turn {turn_id!r} are no longer kept")
        return trimmed, length, state, events


async def _published(inbox: _Inbox, cursor: int) -> list[Event] | None:
    """The next events behind the cursor, or None when only the log can tell."""
    while True:
        try:
            # Not wait_for: that of Python 3.11 can swallow the cancellation of a reader who leaves.
            async with asyncio.timeout(POLL_SECONDS):
                message = await inbox.get()
        except TimeoutError:
            return None
        first, *lines = message.split(b"\n")
        skip = cursor + 1 - int(first)
        if skip < 0:
            return None
        if skip < len(lines):
            return [decode(line) for line in lines[skip:]]


async def _resting_or_pause(inbox: _Inbox) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(POLL_SECONDS):
            while True:
                last = (await inbox.get()).rsplit(b"\n", 1)[-1]
                if isinstance(decode(last), (*TERMINAL_EVENTS, RequiresAction)):
                    return
