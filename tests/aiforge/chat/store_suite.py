"""What any store of conversations must do. A store's own test derives from `StoreSuite`.

class TestMine(StoreSuite):
    @pytest.fixture
    def open_store(self) -> Callable[[], Store]:     # each call: another opening of the same place
        return lambda: MyStore(…)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aiforge.core.types import ConversationMovedError
from aiforge.modules.chat.stores.protocol import Store
from tests.aiforge.chat.support import run

BYTES = '{"text":"größer ✓ \\n", "big": 12345678901234567890}'.encode()


class StoreSuite:
    survives = True
    """Whether a second opening sees what the first one wrote."""

    @pytest.fixture
    def open_store(self) -> Callable[[], Store]:
        raise pytest.UsageError("a store's test gives `open_store`")

    @pytest.fixture
    def store(self, open_store: Callable[[], Store]) -> Store:
        return open_store()

    def test_it_is_a_store(self, store: Store) -> None:
        assert isinstance(store, Store)

    def test_entries_come_back_in_order_and_unchanged(self, store: Store) -> None:
        async def scenario() -> None:
            assert await store.read("a") == []
            for number in range(1, 13):
                await store.append("a", number, BYTES + str(number).encode())
            entries = await store.read("a")
            assert entries == [(number, BYTES + str(number).encode()) for number in range(1, 13)]
            assert await store.read("a", after=10) == entries[10:]
            assert await store.read("a", after=12) == []
            await store.close()

        run(scenario())

    def test_only_the_next_number_is_taken(self, store: Store) -> None:
        async def scenario() -> None:
            for wrong in (0, 2):
                with pytest.raises(ConversationMovedError):
                    await store.append("a", wrong, b"x")
            assert await store.conversations() == []
            await store.append("a", 1, b"one")
            for wrong in (1, 3):
                with pytest.raises(ConversationMovedError) as caught:
                    await store.append("a", wrong, b"x")
                assert caught.value.retryable
            assert await store.read("a") == [(1, b"one")]
            await store.close()

        run(scenario())

    def test_of_many_writers_one_wins(self, open_store: Callable[[], Store]) -> None:
        async def scenario() -> None:
            stores = [open_store() for _ in range(4)] if self.survives else [open_store()] * 4
            for number in range(1, 6):
                writes = (stores[n % 4].append("a", number, f"{number} by {n}".encode()) for n in range(12))
                outcomes = await asyncio.gather(*writes, return_exceptions=True)
                lost = [outcome for outcome in outcomes if outcome is not None]
                assert len(lost) == 11
                assert all(isinstance(outcome, ConversationMovedError) for outcome in lost)
            assert [number for number, _ in await stores[1].read("a")] == [1, 2, 3, 4, 5]
            for store in stores:
                await store.close()

        run(scenario())

    def test_conversations_do_not_meet(self, store: Store) -> None:
        names = ["user-42", "user-4", "User-42", "a.b", "..", "x" * 128, "ünï/ko:de"]

        async def scenario() -> None:
            for name in names:
                await store.append(name, 1, name.encode())
            assert await store.conversations() == sorted(names)
            for name in names:
                assert await store.read(name) == [(1, name.encode())]
            await store.delete("user-42")
            await store.delete("nobody")
            assert await store.conversations() == sorted(set(names) - {"user-42"})
            assert await store.read("user-42") == []
            with pytest.raises(ConversationMovedError):
                await store.append("user-42", 2, b"x")
            await store.append("user-42", 1, b"new")
            await store.close()

        run(scenario())

    def test_compaction_takes_the_place_of_what_is_old(self, store: Store) -> None:
        async def scenario() -> None:
            with pytest.raises(ConversationMovedError):
                await store.compact("a", 1, b"x")
            for number in range(1, 7):
                await store.append("a", number, b"%d" % number)
            await store.compact("a", 4, b"1-4")
            assert await store.read("a") == [(4, b"1-4"), (5, b"5"), (6, b"6")]
            assert await store.read("a", after=4) == [(5, b"5"), (6, b"6")]
            for gone in (2, 7):
                with pytest.raises(ConversationMovedError):
                    await store.compact("a", gone, b"x")
            await store.append("a", 7, b"7")
            await store.compact("a", 7, b"1-7")
            await store.append("a", 8, b"8")
            assert await store.read("a") == [(7, b"1-7"), (8, b"8")]
            await store.close()

        run(scenario())

    def test_several_event_loops(self, store: Store) -> None:
        for number in range(1, 4):
            run(store.append("a", number, b"x"))
        assert len(run(store.read("a"))) == 3
        run(store.close())
        assert len(run(store.read("a"))) == 3
        run(store.close())

    def test_a_second_opening_sees_what_the_first_wrote(self, open_store: Callable[[], Store]) -> None:
        if not self.survives:
            return

        async def scenario() -> None:
            first, second = open_store(), open_store()
            await first.append("a", 1, BYTES)
            assert await second.read("a") == [(1, BYTES)]
            await first.close()
            await second.append("a", 2, b"two")
            await second.close()
            third = open_store()
            assert await third.read("a", after=1) == [(2, b"two")]
            await third.close()

        run(scenario())
