"""One turn at a time, first come, first served."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Final

_around: Final[ContextVar[frozenset[TurnOrder]]] = ContextVar("aiforge_orders", default=frozenset())
"""The orders in whose turns the running code is; tasks and threads of a turn know it, too."""


class TurnOrder:
    """A fair lock whose holders and waiters may be on different event loops and threads.

    asyncio's own lock belongs to one loop; an agent is used from several `asyncio.run` calls, and
    its synchronous methods run on the bridge's loop. Raises RuntimeError for code that is part of a
    turn in this order, such as a tool or a hook: it would wait for itself.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._busy = False
        self._waiting: deque[Future[None]] = deque()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Code in this block, and what it starts, is part of a turn in this order."""
        token = _around.set(_around.get() | {self})
        try:
            yield
        finally:
            _around.reset(token)

    async def __aenter__(self) -> None:
        if self in _around.get():
            raise RuntimeError("this code is part of a turn of this agent, which ends before another begins")
        with self._guard:
            if not self._busy:
                self._busy = True
                return
            ticket: Future[None] = Future()
            self._waiting.append(ticket)
        try:
            await asyncio.wrap_future(ticket)
        except asyncio.CancelledError:
            if not ticket.cancel():
                self._pass_on()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        with self._guard:
            while self._waiting:
                ticket = self._waiting.popleft()
                if ticket.set_running_or_notify_cancel():
                    break
            else:
                self._busy = False
                return
        ticket.set_result(None)
