"""How many slices of batches go on while chats are about."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from tests.support.waiting import eventually
from worker.running.courtesy import LEAST, Courtesy

pytestmark = pytest.mark.anyio
SLOTS = 40
STEP_SECONDS = 0.002


class Batch:
    """Slots that all have something to compute, one slice after the other."""

    def __init__(self, courtesy: Courtesy) -> None:
        self.under_way = 0
        self.slices = 0
        self._courtesy = courtesy
        self._over = False

    async def slot(self) -> None:
        async with self._courtesy.slot():
            while not self._over:
                self.under_way += 1
                await self._slice()
                self.under_way -= 1
                self.slices += 1
                await self._courtesy.between()

    async def _slice(self) -> None:
        for _ in range(3):
            until = time.perf_counter() + STEP_SECONDS
            while time.perf_counter() < until:
                pass
            await asyncio.sleep(0)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[list[asyncio.Task[None]]]:
        async with asyncio.TaskGroup() as group:
            yield [group.create_task(self.slot()) for _ in range(SLOTS)]
            self._over = True


async def test_without_a_chat_any_number_goes_on() -> None:
    batch = Batch(Courtesy())
    async with batch.running():
        await eventually(lambda: batch.slices > 2 * SLOTS)
        assert batch.under_way > SLOTS / 2


async def test_with_a_chat_only_some_go_on_and_afterwards_all_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.running.courtesy.ABOUT_SECONDS", 0.1)
    courtesy = Courtesy()
    batch = Batch(courtesy)
    async with batch.running():
        with courtesy.chat():
            await eventually(lambda: batch.under_way <= LEAST, 30)
            before = batch.slices
            await eventually(lambda: batch.slices > before + SLOTS)
        await eventually(lambda: batch.under_way > SLOTS / 2)


async def test_a_slot_that_is_cancelled_while_it_waits_takes_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.running.courtesy.ABOUT_SECONDS", 0.1)
    courtesy = Courtesy()
    batch = Batch(courtesy)
    async with batch.running() as slots:
        with courtesy.chat():
            await eventually(lambda: batch.under_way <= LEAST, 30)
            for slot in slots[SLOTS // 2 :]:
                slot.cancel()
            await asyncio.wait(slots[SLOTS // 2 :])
            before = batch.slices
            await eventually(lambda: batch.slices > before + SLOTS)
        await eventually(lambda: courtesy.under_way == SLOTS // 2)


async def test_a_loop_with_room_for_all_keeps_nobody_waiting() -> None:
    courtesy = Courtesy()
    with courtesy.chat():
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(SLOTS):
                await stack.enter_async_context(courtesy.slot())
            assert courtesy.under_way == SLOTS
