"""How items of batches begin while chats are about."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

import pytest

from tests.support.waiting import eventually
from worker.running.courtesy import APART_SECONDS, Courtesy

pytestmark = pytest.mark.anyio


class Beginning:
    """Items that begin as they may; `begun` has the batch of each and the time on the loop's clock."""

    def __init__(self, courtesy: Courtesy) -> None:
        self.begun: list[tuple[str, float]] = []
        self._courtesy = courtesy

    async def _item(self, batch: str) -> None:
        await self._courtesy.item(batch)
        self.begun.append((batch, asyncio.get_running_loop().time()))

    @contextlib.asynccontextmanager
    async def items(self, **counts: int) -> AsyncIterator[list[asyncio.Task[None]]]:
        """So many of each batch, all at once; at the end they have begun."""
        async with asyncio.TaskGroup() as group:
            yield [
                group.create_task(self._item(batch)) for batch, count in counts.items() for _ in range(count)
            ]

    @property
    def gaps(self) -> list[float]:
        times = [at for _, at in self.begun]
        return [later - earlier for earlier, later in itertools.pairwise(times)]


async def test_without_a_chat_nobody_waits() -> None:
    beginning = Beginning(Courtesy())
    async with beginning.items(a=50):
        await asyncio.sleep(0)
        assert len(beginning.begun) == 50


async def test_with_a_chat_items_begin_one_by_one() -> None:
    """A clock of whole milliseconds can make two of them look nearer than they are."""
    courtesy = Courtesy()
    beginning = Beginning(courtesy)
    with courtesy.chat():
        async with beginning.items(a=50):
            pass
    assert sum(beginning.gaps) > 0.9 * 49 * APART_SECONDS
    assert min(beginning.gaps) > 0


async def test_behind_a_chat_another_one_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    courtesy = Courtesy()
    with courtesy.chat():
        pass
    async with Beginning(courtesy).items(a=2) as tasks:
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
    monkeypatch.setattr("worker.running.courtesy.ABOUT_SECONDS", 0.0)
    beginning = Beginning(courtesy)
    async with beginning.items(a=50):
        await asyncio.sleep(0)
        assert len(beginning.begun) == 50


async def test_who_waits_goes_at_once_when_no_chat_is_about_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.running.courtesy.APART_SECONDS", 0.05)
    courtesy = Courtesy()
    beginning = Beginning(courtesy)
    async with beginning.items(a=200):
        with courtesy.chat():
            await eventually(lambda: len(beginning.begun) == 2)
        monkeypatch.setattr("worker.running.courtesy.ABOUT_SECONDS", 0.0)
        await eventually(lambda: len(beginning.begun) == 200, 5)


async def test_batches_take_turns() -> None:
    courtesy = Courtesy()
    beginning = Beginning(courtesy)
    with courtesy.chat():
        async with beginning.items(long=40, short=5):
            pass
    assert [batch for batch, _ in beginning.begun[:10]] == ["long", "short"] * 5


async def test_an_item_that_is_cancelled_while_it_waits_takes_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("worker.running.courtesy.APART_SECONDS", 0.05)
    courtesy = Courtesy()
    beginning = Beginning(courtesy)
    with courtesy.chat():
        async with beginning.items(a=200) as tasks:
            await eventually(lambda: beginning.begun)
            for task in tasks[1:-2]:
                task.cancel()
            await eventually(lambda: len(beginning.begun) >= 3, 5)
