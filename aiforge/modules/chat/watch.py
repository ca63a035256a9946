"""A turn that runs while somebody reads its events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from aiforge.core.events import Event
from aiforge.modules.chat.order import TurnOrder

T = TypeVar("T")


class WatchedTurn(Generic[T]):
    """Starts the turn when its time in `order` has come, and ends it when the reader leaves.

    This is no generator, because one generator inside another cannot be left to the event loop: at
    its end the loop closes both at the same time, which Python refuses.
    """

    def __init__(
        self, order: TurnOrder, start: Callable[[Callable[[Event], None]], Coroutine[Any, Any, T]]
    ) -> None:
        self._order = order
        self._start = start
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._turn: asyncio.Task[T]

    async def __aenter__(self) -> Self:
        await self._order.__aenter__()
        self._turn = asyncio.create_task(self._start(self._events.put_nowait))
        self._turn.add_done_callback(lambda _: self._events.put_nowait(None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._turn.cancel()
            await asyncio.wait([self._turn])
        finally:
            await self._order.__aexit__(kind, error, trace)

    async def next(self) -> Event | None:
        """The next event, None after the last."""
        return await self._events.get()

    def result(self) -> T:
        """What the turn returned or raised, once `next` has given None."""
        return self._turn.result()
