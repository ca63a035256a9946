"""One of something for each event loop: connections belong to the loop that opened them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

CLOSE_SECONDS: Final = 1.0


class _Held(NamedTuple, Generic[T]):
    thing: T
    keeper: AsyncGenerator[None, None]
    """Closes the thing when it is closed itself."""


_All: TypeAlias = dict[asyncio.AbstractEventLoop, _Held[T]]


class PerLoop(Generic[T]):
    """What `make` makes, once for each event loop that asks.

    It is closed by `aclose`, when its loop ends (`asyncio.run` sees to it), when nobody needs this
    object any more, or when the process ends.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        # What is made holds its loop, so weak keys would never let go of either.
        self._all: _All[T] = {}
        weakref.finalize(self, _close_all, self._all)

    def __len__(self) -> int:
        return len(self._all)

    async def get(self) -> T:
        """The running loop's own."""
        loop = asyncio.get_running_loop()
        held = self._all.get(loop) or await self._open(loop)
        return held.thing

    async def aclose(self) -> None:
        """Close the running loop's own; the next `get` makes another."""
        held = self._all.get(asyncio.get_running_loop())
        if held is not None:
            await held.keeper.aclose()

    async def _open(self, loop: asyncio.AbstractEventLoop) -> _Held[T]:
        for other in [known for known in list(self._all) if known.is_closed()]:
            self._all.pop(other, None)
        thing = self._make()
        held = self._all[loop] = _Held(thing, _keep(thing, self._close, self._all, loop))
        await anext(held.keeper)
        return held


async def _keep(
    thing: T, close: Callable[[T], Awaitable[None]], everything: _All[T], loop: asyncio.AbstractEventLoop
) -> AsyncGenerator[None, None]:
    """Keeps something open. A generator, because an event loop closes its generators before it ends."""
    try:
        yield
    finally:
        del everything[loop]
        await close(thing)


def _close_all(everything: _All[T]) -> None:
    """Close what is left behind, on loops that still run, and without blocking another loop."""
    for loop, held in list(everything.items()):
        if loop.is_running():
            closing = asyncio.run_coroutine_threadsafe(_close(held), loop)
            if not _inside_a_loop():
                with suppress(TimeoutError):
                    closing.result(CLOSE_SECONDS)


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _close(held: _Held[T]) -> None:
    await held.keeper.aclose()
