"""One turn at a time, first come, first served."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from types import TracebackType


class TurnOrder:
    """A fair lock whose holders and waiters may be on different event loops and threads.

    asyncio's own lock belongs to one loop; an agent is used from several `asyncio.run` calls, and
    its synchronous methods run on the bridge's loop.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._busy = False
        self._waiting: deque[Future[None]] = deque()

    async def __aenter__(self) -> None:
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
