"""Conversations in this process, for tests and for agents that share one."""

from __future__ import annotations

import threading

from aiforge.core.types import ConversationMovedError
from aiforge.modules.chat.stores.protocol import moved


class MemoryStore:
    """Keeps everything until the process ends."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._logs: dict[str, dict[int, bytes]] = {}

    async def append(self, conversation_id: str, number: int, entry: bytes) -> None:
        with self._guard:
            log = self._logs.get(conversation_id, {})
            if number != max(log, default=0) + 1:
                raise ConversationMovedError(moved(conversation_id, number))
            self._logs.setdefault(conversation_id, log)[number] = entry

    async def read(self, conversation_id: str, *, after: int = 0) -> list[tuple[int, bytes]]:
        with self._guard:
            log = self._logs.get(conversation_id, {})
            return [
                (number, log[number]) for number in range(after + 1, max(log, default=0) + 1) if number in log
            ]

    async def compact(self, conversation_id: str, number: int, entry: bytes) -> None:
        with self._guard:
            log = self._logs.get(conversation_id, {})
            if number not in log:
                raise ConversationMovedError(moved(conversation_id, number))
            later = {key: value for key, value in log.items() if key > number}
            self._logs[conversation_id] = {number: entry, **later}

    async def delete(self, conversation_id: str) -> None:
        with self._guard:
            self._logs.pop(conversation_id, None)

    async def conversations(self) -> list[str]:
        with self._guard:
            return sorted(self._logs)

    async def close(self) -> None:
        """There is nothing to close."""
