"""What a store of conversations must do.

A conversation is a log of numbered entries, each of which says what changed: so a version costs what
it changed, and two who write at the same time cannot both succeed. Entries are bytes that a store does
not look into. `tests/aiforge/chat/store_suite.py` is what any store has to pass.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Store(Protocol):
    """A log of entries per conversation, numbered from 1 without holes.

    All methods may be called from several event loops and threads. What a store cannot do it says
    with StoreError.
    """

    async def append(self, conversation_id: str, number: int, entry: bytes) -> None:
        """Add the entry after the last one, durably.

        Raises ConversationMovedError, and writes nothing, unless `number` is the next number.
        """
        ...

    async def read(self, conversation_id: str, *, after: int = 0) -> list[tuple[int, bytes]]:
        """The entries with a number above `after`, in order; none for an unknown conversation."""
        ...

    async def compact(self, conversation_id: str, number: int, entry: bytes) -> None:
        """Put `entry` in the place of all entries up to this number, as one step.

        Raises ConversationMovedError, and changes nothing, when there is no entry of this number.
        """
        ...

    async def delete(self, conversation_id: str) -> None:
        """Erase the conversation; one that is unknown is erased already."""
        ...

    async def conversations(self) -> list[str]:
        """The ids of all conversations that have entries, sorted."""
        ...

    async def close(self) -> None:
        """Let go of files and connections; the next use opens them again."""
        ...


def moved(conversation_id: str, number: int) -> str:
    """What a ConversationMovedError says."""
    return f"conversation {conversation_id!r} has gone on: entry {number} is not the next one"
