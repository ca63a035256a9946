"""The one thin bridge from plain functions to coroutines.

Synchronous methods hand their coroutine to an event loop in a thread of its own, one per process.
So they work in a script, inside a running loop (a notebook) and from many threads at once, and
connections stay open from call to call. What belongs to one loop for as long as the process lives,
such as the HTTP clients that LangChain's packages keep, runs here, too.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import TimeoutError as Late
from contextlib import aclosing, suppress
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

FAREWELL_SECONDS: Final = 2.0
"""How long the end of the process waits for what still runs here to let go of its connections."""

AGAIN_SECONDS: Final = 0.05
"""Between two cancellations of what nobody waits for any more."""

_END: Final = object()
_starting = threading.Lock()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Wait for `coroutine`; an interrupt of the waiting thread cancels it."""
    loop, thread = _current()
    if threading.current_thread() is thread:
        coroutine.close()
        raise RuntimeError("a synchronous method would block the code that calls it: await its async twin")
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    finally:
        future.cancel()


def iterate(generator: AsyncGenerator[T, None]) -> Iterator[T]:
    """The items of `generator`, each produced when it is asked for; closing this closes it."""
    try:
        while (item := run(_next(generator))) is not _END:
            yield item  # type: ignore[misc]  # the sentinel is no T, and it is excluded above
    finally:
        if not _current()[0].is_closed():  # it is at the end of the process, where nobody would answer
            run(_close(generator))


async def there(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await `coroutine` on the bridge's loop, from whichever loop this is.

    Who is cancelled leaves at once; the coroutine is cancelled until it has ended.
    """
    guest = _Guest(coroutine)
    try:
        return await asyncio.wrap_future(guest.future)
    finally:
        guest.let_go()


async def stream_there(generator: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """The items of `generator`, which runs on the bridge's loop; closing this closes it."""
    here = asyncio.get_running_loop()
    items: asyncio.Queue[tuple[T] | None] = asyncio.Queue()

    def hand_over(item: tuple[T] | None) -> None:
        with suppress(RuntimeError):  # nobody waits any more: that loop is closed
            here.call_soon_threadsafe(items.put_nowait, item)

    async def read() -> None:
        async with aclosing(generator):
            async for item in generator:
                hand_over((item,))

    guest = _Guest(read())
    guest.future.add_done_callback(lambda _: hand_over(None))
    try:
        while (given := await items.get()) is not None:
            yield given[0]
        await asyncio.wrap_future(guest.future)
    finally:
        guest.let_go()


class _Guest(Generic[T]):
    """A coroutine on the bridge's loop, in a task of its own."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._loop, _ = _current()
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self.future = asyncio.run_coroutine_threadsafe(self._run(), self._loop)

    def let_go(self) -> None:
        """See to it that it ends; who calls this waits for nothing."""
        if not self.future.done() or self.future.cancelled():
            self.future.cancel()
            with suppress(RuntimeError):  # at the end of the process the loop is closed
                self._loop.call_soon_threadsafe(self._end)

    async def _run(self) -> T:
        self._task = asyncio.ensure_future(self._coroutine)
        return await self._task

    def _end(self) -> None:
        """Again and again: a package that waits by means of its own can swallow a cancellation."""
        if self._task is None:
            self._coroutine.close()
        elif not self._task.done():
            self._task.cancel()
            self._loop.call_later(AGAIN_SECONDS, self._end)
        elif not self._task.cancelled():
            self._task.exception()  # seen: nobody is left who could be told


async def _next(generator: AsyncGenerator[T, None]) -> T | object:
    return await anext(generator, _END)


async def _close(generator: AsyncGenerator[Any, None]) -> None:
    await generator.aclose()


def _current() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    with _starting:
        return _loop(os.getpid())


@functools.cache
def _loop(process: int) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    """The bridge of this process; a forked child does not inherit the thread, so it gets its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_serve, args=(loop,), name=f"aiforge-bridge-{process}", daemon=True)
    thread.start()
    atexit.register(_end, process, loop, thread)
    return loop, thread


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped. These two errors leave it; their task has them, all others go on."""
    while True:
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            continue
        return


def _end(process: int, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Cancel what still runs and close what is open, as `asyncio.run` does at its end."""
    if process != os.getpid():
        return
    with suppress(Late):
        asyncio.run_coroutine_threadsafe(_wind_up(), loop).result(FAREWELL_SECONDS)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(FAREWELL_SECONDS)
    if not thread.is_alive():
        loop.close()


async def _wind_up() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
