"""One connection to Redis on which any number of commands are under way at a time, their replies in order.

redis-py connects, authenticates and parses. Its pool is not used: it keeps a connection for each command
under way, and what it does around a command costs more than the command.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

import hiredis
from redis.exceptions import BusyLoadingError, ConnectionError, RedisError, ResponseError  # noqa: A004

Argument: TypeAlias = str | bytes | int | float
Reply: TypeAlias = Any

_pack: Final[Callable[[Any], bytes]] = hiredis.pack_command


def checked(reply: Reply) -> Reply:
    """A reply, raised if it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return reply


class _Asked(NamedTuple):
    """Commands that were sent together, and their replies so far.

    A last command has the mark echoed: a reply that something between here and Redis has swallowed
    would else shift all later ones to the wrong callers.
    """

    wanted: int
    mark: bytes
    replies: list[Reply]
    answered: asyncio.Future[list[Reply]]


class Link:
    """Connects when it is first asked, and anew after every fault; lives on one event loop."""

    def __init__(self, open_one: Callable[[], Awaitable[Any]]) -> None:
        """`open_one` gives a redis-py connection that is connected."""
        self._open = open_one
        self._live: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._asked: deque[_Asked] = deque()
        self._marks = count()
        self._connecting = asyncio.Lock()

    async def ask(self, commands: Iterable[Sequence[Argument]]) -> list[Reply]:
        """The replies to some commands; an error that is a reply stands in its place.

        Raises what redis-py does when the connection breaks. One who gives up waiting, because of a time
        limit, calls `drop`.
        """
        mark = b"%d" % next(self._marks)
        packed = [*(_pack((*command,)) for command in commands), _pack(("ECHO", mark))]
        live = self._live if self._usable else await self._connect()
        asked = _Asked(len(packed), mark, [], asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        try:
            await live.send_packed_command(packed, check_health=False)
        except (asyncio.CancelledError, RedisError, OSError) as error:
            asked.answered.cancel()
            if isinstance(error, asyncio.CancelledError):
                self.drop()
            raise
        return await asked.answered

    def drop(self) -> None:
        """Give the connection up; whoever waits for a reply gets a ConnectionError."""
        if self._reading is not None:
            self._reading.cancel()

    @property
    def waits(self) -> bool:
        """Whether a reply is missing."""
        return bool(self._asked)

    async def close(self) -> None:
        self.drop()
        if self._reading is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading

    @property
    def _usable(self) -> bool:
        return self._live is not None and self._live.is_connected

    async def _connect(self) -> Any:
        async with self._connecting:
            if not self._usable:
                live = await self._open()
                self._live, self._asked = live, deque()
                self._reading = asyncio.create_task(self._read(live, self._asked), name="link")
                await asyncio.sleep(0)  # cancelled before it has begun, it would end nobody's waiting
            return self._live

    async def _read(self, live: Any, asked: deque[_Asked]) -> None:
        why = "closed"
        try:
            while True:
                try:
                    reply = await live.read_response(disconnect_on_error=False)
                except (ResponseError, BusyLoadingError) as error:
                    reply = error
                replies = asked[0].replies
                replies.append(reply)
                if len(replies) == asked[0].wanted:
                    if replies.pop() != asked[0].mark:
                        raise ConnectionError("a reply is missing")
                    answered = asked.popleft().answered
                    if not answered.done():
                        answered.set_result(replies)
        except (RedisError, OSError) as error:
            why = str(error)
        finally:
            if self._live is live:
                self._live = None
            for waiting in asked:
                if not waiting.answered.done():
                    waiting.answered.set_exception(ConnectionError(why))
            await live.disconnect(nowait=True)
