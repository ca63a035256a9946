"""One conversation of an agent: what it remembers and, with a store, that all others see the same."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence

from aiforge.core.request import Action
from aiforge.core.texts import encodable
from aiforge.core.types import ConversationMovedError, StoreError
from aiforge.modules.chat.entries import (
    DeliveredEntry,
    Entry,
    PausedEntry,
    SnapshotEntry,
    Summarized,
    TurnEntry,
    decode,
    encode,
)
from aiforge.modules.chat.log import Log, remembered
from aiforge.modules.chat.memory import Memory
from aiforge.modules.chat.stores.protocol import Store


class Conversation:
    """The state that turns build on. Whoever changes it holds the agent's turn order.

    Without a store nothing but memory is kept. With one, the log in the store is the truth: before a
    turn `catch_up` reads what others have added, and a commit that somebody else forestalled raises
    ConversationMovedError and changes nothing.
    """

    def __init__(
        self,
        new_memory: Callable[[str], Memory],
        *,
        conversation_id: str | None = None,
        store: Store | None = None,
    ) -> None:
        self.id = encodable(conversation_id or secrets.token_hex(8))
        self.store = store
        self._new_memory = new_memory
        self.memory = new_memory(self.id)
        self.version = 0
        self.turn = 0
        self.paused: PausedEntry | None = None
        """The turn that waits for a human."""
        self.undelivered: dict[str, Action] = {}
        """Actions of turns that are committed, not dispatched yet."""
        self._summarized: list[Summarized] = []
        """What memory has lost to summaries since the last commit."""

    def fresh(self) -> Conversation:
        """An empty conversation of the same kind, in the same store."""
        return Conversation(self._new_memory, store=self.store)

    def shortened(self, messages: int) -> None:
        """Memory has lost so many of its oldest messages to its summary."""
        if self.store is not None and self.memory.summary is not None:
            self._summarized.append(Summarized(messages, self.memory.summary))

    async def catch_up(self) -> None:
        """Learn what others have added to the store since this agent last looked."""
        if self.store is None:
            return
        news = await self._read(after=self.version)
        if not news:
            return
        simple = (TurnEntry, PausedEntry, DeliveredEntry)
        if self._summarized or not all(isinstance(entry, simple) for _, entry in news):
            await self.restore()
            return
        for number, entry in news:
            self._take(entry)
            self.version = number

    async def restore(self) -> Log:
        """Become what the store says, from the beginning."""
        log = await self.log()
        self.memory, self.paused, self._summarized = self._new_memory(self.id), None, []
        for _, entry in log.path(log.last):
            self._take(entry)
        self.version, self.turn = log.last, log.highest_turn()
        self.undelivered = log.undelivered()
        return log

    async def log(self) -> Log:
        return Log(await self._read(after=0))

    async def _read(self, *, after: int) -> list[tuple[int, Entry]]:
        """What the store has; raises StoreError when an entry is missing between two others.

        It may begin later than was asked for: with the entry that stands for all up to it.
        """
        assert self.store is not None
        entries = [(n, decode(entry)) for n, entry in await self.store.read(self.id, after=after)]
        expected = after + 1
        if entries and isinstance(entries[0][1], SnapshotEntry):
            expected = max(entries[0][0], expected)
        for number, _ in entries:
            if number != expected:
                raise StoreError(f"conversation {self.id!r} lacks entry {expected} before entry {number}")
            expected += 1
        return entries

    async def commit(self, entry: TurnEntry) -> None:
        """Make a turn that ended well part of the conversation."""
        await self.append(entry)
        self.memory.add(entry.messages)
        self._settle(entry)

    async def pause(self, entry: PausedEntry) -> None:
        """Keep a turn that waits for a human; memory learns of it when it has ended."""
        await self.append(entry)
        self._settle(entry)

    async def delivered(self, ids: Sequence[str]) -> None:
        """These actions were dispatched, whatever others have added meanwhile."""
        while ids:
            try:
                await self.append(DeliveredEntry(at=time.time(), ids=list(ids)))
                break
            except ConversationMovedError:
                await self.catch_up()
        for id_ in ids:
            self.undelivered.pop(id_, None)

    async def append(self, entry: Entry) -> None:
        """Write the next version; a cancellation waits until it is known whether that is done."""
        if self.store is None:
            return
        writing = asyncio.ensure_future(self.store.append(self.id, self.version + 1, encode(entry)))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.gather(writing, return_exceptions=True)
            raise
        self.version += 1

    def summarized(self) -> list[Summarized]:
        """What the next entry has to say of summaries."""
        return list(self._summarized)

    def _settle(self, entry: TurnEntry | PausedEntry) -> None:
        self._summarized = []
        self.turn = max(self.turn, entry.turn)
        self.paused = entry if isinstance(entry, PausedEntry) else None
        if isinstance(entry, TurnEntry):
            self.undelivered.update((action.id, action) for action in entry.actions)

    def _take(self, entry: Entry) -> None:
        """Follow a step that was read."""
        match entry:
            case SnapshotEntry():
                self.memory.add(entry.messages)
                self._replace(len(entry.messages) - entry.remembered, entry.summary)
                self.turn = entry.turn
            case TurnEntry() | PausedEntry():
                for step in entry.summarized:
                    self._replace(step.messages, step.summary)
                if isinstance(entry, TurnEntry):
                    self.memory.add(entry.messages)
                self._settle(entry)
            case DeliveredEntry():
                for id_ in entry.ids:
                    self.undelivered.pop(id_, None)
            case _:
                pass

    def _replace(self, messages: int, summary: str | None) -> None:
        """Summaries that an agent with another kind of memory made are nothing to this one."""
        if self.memory.summarizes and summary is not None:
            self.memory.replace(messages, summary)


def snapshot(log: Log, version: int, *, branch: bool = False) -> SnapshotEntry:
    """All that the conversation is at `version`, in one entry; a branch does not dispatch its actions."""
    path = log.path(version)
    count, summary = remembered(path)
    return SnapshotEntry(
        at=time.time(),
        turn=log.highest_turn(),
        messages=log.messages(version),
        remembered=count,
        summary=summary,
        actions=[] if branch else list(log.undelivered(version).values()),
    )
