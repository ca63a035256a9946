"""The fair lock of an agent, across loops and threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from aiforge.core import bridge
from aiforge.modules.chat.order import TurnOrder
from tests.aiforge.chat.support import run, until


def test_waiters_of_several_loops_take_turns_in_the_order_in_which_they_came() -> None:
    order = TurnOrder()
    seen: list[int] = []

    async def take(number: int) -> None:
        async with order:
            seen.append(number)

    threads: list[threading.Thread] = []

    async def scenario() -> None:
        async with order:
            for number in range(6):
                thread = threading.Thread(target=run, args=(take(number),))
                thread.start()
                threads.append(thread)
                await until(lambda expected=number + 1: len(order._waiting) == expected)  # type: ignore[misc]

    run(scenario())
    for thread in threads:
        thread.join(10)
    assert seen == list(range(6))


def test_a_waiter_that_is_cancelled_as_its_turn_comes_passes_it_on() -> None:
    order = TurnOrder()

    async def wait() -> None:
        async with order:
            pass

    async def scenario() -> None:
        async with order:
            first, second = asyncio.create_task(wait()), asyncio.create_task(wait())
            await until(lambda: len(order._waiting) == 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await second
        async with order:
            pass

    run(scenario())


def test_an_error_of_the_holder_frees_the_line() -> None:
    order = TurnOrder()

    async def scenario() -> None:
        with pytest.raises(ValueError, match="mine"):
            async with order:
                raise ValueError("mine")
        async with order:
            pass

    run(scenario())


def test_an_interrupt_of_the_waiting_thread_cancels_the_work() -> None:
    cancelled = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def fail() -> None:
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        bridge.run(fail())
    with pytest.raises(TimeoutError):
        bridge.run(asyncio.wait_for(hang(), 0.05))
    assert cancelled.wait(5)
