"""Something that many want and one asks for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """Something that is asked for once, however many want it, in whatever threads and event loops."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._answer: Future[tuple[T] | None] | None = None
        """Holds None when who asked was cancelled: then the next one asks."""

    async def get(self, ask: Callable[[], Awaitable[T]]) -> T:
        while True:
            with self._guard:
                first = self._answer is None
                answer = self._answer = self._answer or Future()
            if first:
                return await self._ask(ask, answer)
            if (known := await asyncio.shield(asyncio.wrap_future(answer))) is not None:
                return known[0]

    async def _ask(self, ask: Callable[[], Awaitable[T]], answer: Future[tuple[T] | None]) -> T:
        known: tuple[T] | None = None
        try:
            known = (await ask(),)
        finally:
            if known is None:
                with self._guard:
                    self._answer = None
            answer.set_result(known)
        return known[0]
