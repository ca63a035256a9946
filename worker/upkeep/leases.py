"""What this process holds: renewed together, from a loop that no turn can block."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal

from worker import metrics
from worker.contract.errors import Unavailable
from worker.contract.ids import is_batch
from worker.contract.store import TurnStore

StopReason = Literal["cancelled", "rolled_back", "handed_back", "lost"]
REASONS: Final[dict[str, StopReason]] = {
    "cancel": "cancelled",
    "interrupt": "cancelled",
    "rollback": "rolled_back",
    "erase": "lost",
}
"""What someone asked for, and what that means for who runs the turn."""
HOLDER: Final = ContextVar("HOLDER", default=0)
"""The pool's task on whose behalf something is held; the coroutine that a task waits for inherits it."""


class Held:
    """A turn or slice that runs here. `stop` may be called from any thread, the first reason counts."""

    def __init__(self, work: str, fence: int, loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.fence = fence
        self.holder = HOLDER.get()
        self.reason: StopReason | None = None
        self._loop = loop
        self._task: asyncio.Task[object] | None = None

    def stop(self, reason: StopReason) -> None:
        self._loop.call_soon_threadsafe(self._stop, reason)

    def follow(self, task: asyncio.Task[object]) -> None:
        """Cancel `task` when this is stopped, at once if it was stopped before."""
        self._task = task
        if self.reason is not None:
            task.cancel()

    def _stop(self, reason: StopReason) -> None:
        if self.reason is None:
            self.reason = reason
            if self._task is not None:
                self._task.cancel()


class Leases:
    """All that is held by this process; used by the turns' loop and by the upkeep loop."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._lock = threading.Lock()
        self._over: StopReason | None = None
        self.renewed_at = time.monotonic()

    @contextmanager
    def hold(self, work: str, fence: int) -> Iterator[Held]:
        held = Held(work, fence, asyncio.get_running_loop())
        with self._lock:
            self._held[work] = held
            held.reason = self._over
        try:
            yield held
        finally:
            with self._lock:
                if self._held.get(work) is held:
                    del self._held[work]

    def stop(self, work: str, reason: StopReason) -> None:
        """Stop one piece of work if it runs here."""
        with self._lock:
            held = self._held.get(work)
        if held is not None:
            held.stop(reason)

    def stop_held_by(self, holder: int, reason: StopReason) -> None:
        """Stop what one task of the pool holds."""
        with self._lock:
            found = [held for held in self._held.values() if held.holder == holder]
        for held in found:
            held.stop(reason)

    def stop_all(self, reason: StopReason) -> None:
        """Stop everything, and from now on whatever a claim that is under way still brings."""
        with self._lock:
            self._over = reason
            everything = list(self._held.values())
        for held in everything:
            held.stop(reason)

    def __len__(self) -> int:
        return len(self._held)

    async def let_go(self, seconds: float) -> None:
        """Wait until nothing is held here, or the time is over."""
        limit = time.monotonic() + seconds
        while self._held and time.monotonic() < limit:  # noqa: ASYNC110  # the work ends on another loop
            await asyncio.sleep(0.01)

    async def renew(self, store: TurnStore) -> None:
        """One heartbeat; what another worker has been given, or someone has cancelled, is stopped here.

        A cancellation is published, too: this finds those whose message was lost.
        """
        with self._lock:
            fences = {work: held.fence for work, held in self._held.items()}
        if fences:
            for work in await store.heartbeat(fences):
                with self._lock:
                    held = self._held.get(work)
                if held is not None and held.fence == fences[work]:
                    held.stop("lost")
        self.renewed_at = time.monotonic()
        asked = await store.stops_asked([work for work in fences if not is_batch(work)])
        for turn_id, how in asked.items():
            self.stop(turn_id, REASONS[how])

    async def keep(self, store: TurnStore, every: float) -> None:
        """Renew for ever; an unreachable Redis is tried again at the next beat."""
        while True:
            try:
                await self.renew(store)
            except Unavailable:
                metrics.HEARTBEAT_AGE.set(time.monotonic() - self.renewed_at)
            else:
                metrics.HEARTBEAT_AGE.set(0)
            await asyncio.sleep(every)
