"""Conversations in Redis: their settings, memory, waiting line and end; and the letters that died."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from worker.contract import records
from worker.contract.connection import Connection
from worker.contract.errors import Conflict, NotFound
from worker.contract.keys import SHARDS, Keys, shard_of, shard_of_id
from worker.contract.link import Argument
from worker.contract.schemas import (
    CONVERSATION_VERSION,
    Conversation,
    ConversationSettings,
    Erasure,
    Line,
    StoredMessage,
)
from worker.contract.settings import ContractSettings
from worker.contract.transfer import ConversationExport

PAGE: Final = 1_000
"""Messages that are read at a time."""
GONE_MS: Final = 86_400_000
"""How long an erased turn's id is remembered, so that no repetition brings it back."""


class ConversationStore:
    """Typed access to conversations; safe to share within one event loop."""

    def __init__(self, connection: Connection, settings: ContractSettings) -> None:
        self.connection = connection
        self.keys = Keys(settings.namespace)
        self._lives = settings.conversation_ttl_seconds

    async def open(
        self,
        tenant: str,
        conversation_id: str,
        settings: ConversationSettings,
        *,
        created_at: float | None = None,
        messages: Sequence[bytes] = (),
    ) -> Conversation:
        """Create a conversation with the messages that it has already; Conflict when the tenant has it."""
        lives = self._lives if settings.ttl is None else settings.ttl
        shard = shard_of(tenant, conversation_id)
        arguments: list[Argument] = [
            conversation_id, CONVERSATION_VERSION, settings.memory_k, records.encode(settings),
            settings.on_busy, int(lives * 1000), secrets.token_hex(8),
            "" if created_at is None else round(created_at * 1000), *messages,
        ]  # fmt: skip
        created = await self.connection.run(
            "open",
            [
                self.keys.conversation(tenant, conversation_id),
                self.keys.convs(tenant, shard),
                self.keys.messages(tenant, conversation_id),
            ],
            arguments,
        )
        if not created:
            raise Conflict(f"conversation {conversation_id!r} exists already", code="conversation_exists")
        return await self.get(tenant, conversation_id)

    async def get(self, tenant: str, conversation_id: str) -> Conversation:
        """Raises NotFound when the tenant has no such conversation."""
        return records.conversation(conversation_id, *await self._read(tenant, conversation_id))

    async def messages(
        self, tenant: str, conversation_id: str, after: int, limit: int
    ) -> list[StoredMessage]:
        """Stored messages in order, beginning behind the first `after`."""
        await self.get(tenant, conversation_id)
        name = self.keys.messages(tenant, conversation_id)
        stored = await self.connection.command("LRANGE", name, after, after + limit - 1)
        return [msgspec.json.decode(message, type=StoredMessage) for message in stored]

    async def export(self, tenant: str, conversation_id: str) -> ConversationExport:
        """A conversation with all its messages as they are when this begins."""
        flat, stored = await self._read(tenant, conversation_id)
        name = self.keys.messages(tenant, conversation_id)
        messages: list[bytes] = []
        while len(messages) < stored:
            until = min(len(messages) + PAGE, stored)
            page = await self.connection.command("LRANGE", name, len(messages), until - 1)
            if not page:
                raise NotFound(f"conversation {conversation_id!r} does not exist")
            messages += page
        return ConversationExport(
            conversation_id=conversation_id,
            created_at=int(flat["created_at"]) / 1000,
            settings=msgspec.json.decode(flat["settings"], type=ConversationSettings),
            messages=[msgspec.json.decode(message, type=StoredMessage) for message in messages],
        )

    async def latest(
        self, tenant: str, before: tuple[int, str] | None, limit: int
    ) -> list[tuple[int, Conversation]]:
        """Conversations with the time of their latest turn in Unix milliseconds, the newest first.

        `before` is time and id of the last one that is known: several may have the same time.
        """
        until = "+inf" if before is None else f"({before[0]}"
        indexes = [self.keys.convs(tenant, shard) for shard in range(SHARDS)]
        asked = [
            ("ZREVRANGEBYSCORE", name, until, "-inf", "WITHSCORES", "LIMIT", 0, limit) for name in indexes
        ]
        same = [("ZRANGEBYSCORE", name, before[0], before[0], "WITHSCORES") for name in indexes if before]
        replies = await self.connection.commands([*asked, *same])
        found = [(int(float(score)), name.decode()) for reply in replies for name, score in _pairs(reply)]
        found = sorted((one for one in found if before is None or one < before), reverse=True)[:limit]
        read = [
            command
            for _, name in found
            for command in (
                ("HGETALL", self.keys.conversation(tenant, name)),
                ("LLEN", self.keys.messages(tenant, name)),
            )
        ]
        answers = await self.connection.commands(read) if read else []
        living, expired = [], []
        for (when, name), flat, stored in zip(found, answers[::2], answers[1::2], strict=True):
            if flat:
                living.append((when, records.conversation(name, records.fields(flat), stored)))
            else:
                expired.append(name)
        await self._tidy(tenant, expired)
        if expired and len(living) < limit and found:
            return living + await self.latest(tenant, found[-1], limit - len(living))
        return living

    async def line(self, tenant: str, conversation_id: str) -> Line:
        """Who runs and who waits."""
        await self.get(tenant, conversation_id)
        active, waiting = await self.connection.commands(
            [
                ("HGET", self.keys.conversation(tenant, conversation_id), "active"),
                ("LRANGE", self.keys.fifo(tenant, conversation_id), 0, -1),
            ]
        )
        return Line(active=active.decode() if active else None, waiting=[name.decode() for name in waiting])

    async def reorder(
        self, tenant: str, conversation_id: str, seen: Sequence[str], wanted: Sequence[str]
    ) -> bool:
        """Put the waiting turns into another order; False when they no longer stand as `seen`."""
        name = self.keys.fifo(tenant, conversation_id)
        return bool(await self.connection.run("reorder", [name], [len(seen), *seen, *wanted]))

    async def erase(self, tenant: str, conversation_id: str) -> Erasure:
        """Erase a conversation and all its turns. Raises NotFound."""
        keys, shard = self.keys, shard_of(tenant, conversation_id)
        counts = await self.connection.run(
            "erase",
            keys.of_turn("", tenant, conversation_id),
            [conversation_id, keys.gone(shard), GONE_MS, keys.control()],
        )
        if not counts:
            raise NotFound(f"conversation {conversation_id!r} does not exist")
        messages, turns, stopped = counts
        return Erasure(conversation_id=conversation_id, messages=messages, turns=turns, stopped=stopped)

    async def dead(self, limit: int) -> list[str]:
        """Ids of dead letters, the latest first; those whose turn has expired are forgotten."""
        indexes = [self.keys.dead(shard) for shard in range(SHARDS)]
        replies = await self.connection.commands(
            [("ZREVRANGEBYSCORE", name, "+inf", "-inf", "WITHSCORES", "LIMIT", 0, limit) for name in indexes]
        )
        found = [(float(score), name.decode()) for reply in replies for name, score in _pairs(reply)]
        names = [name for _, name in sorted(found, reverse=True)[:limit]]
        for name in names:
            await self.connection.run(
                "tidy", [self.keys.dead(shard_of_id(name)), self.keys.turn(name)], [name]
            )
        return names

    async def is_dead(self, turn_id: str) -> bool:
        """Whether a turn is a dead letter."""
        index = self.keys.dead(shard_of_id(turn_id))
        return await self.connection.command("ZSCORE", index, turn_id) is not None

    async def bury(self, turn_id: str) -> bool:
        """Take a turn from the dead letters; False when it is none."""
        return bool(await self.connection.run("bury", [self.keys.dead(shard_of_id(turn_id))], [turn_id]))

    async def _read(self, tenant: str, conversation_id: str) -> tuple[dict[str, bytes], int]:
        """A conversation's record and how many messages it has; raises NotFound."""
        flat, stored = await self.connection.commands(
            [
                ("HGETALL", self.keys.conversation(tenant, conversation_id)),
                ("LLEN", self.keys.messages(tenant, conversation_id)),
            ]
        )
        if not flat:
            raise NotFound(f"conversation {conversation_id!r} does not exist")
        return records.fields(flat), stored

    async def _tidy(self, tenant: str, conversations: Sequence[str]) -> None:
        for name in conversations:
            index = self.keys.convs(tenant, shard_of(tenant, name))
            await self.connection.run("tidy", [index, self.keys.conversation(tenant, name)], [name])


def _pairs(reply: Sequence[Any]) -> list[tuple[bytes, bytes]]:
    """Members and scores as RESP2 gives them in one list, RESP3 in pairs."""
    if reply and isinstance(reply[0], list):
        return [(name, score) for name, score in reply]
    return list(zip(reply[::2], reply[1::2], strict=True))
