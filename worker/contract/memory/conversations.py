"""Conversations in Redis: their settings, memory, waiting line and end; and the letters that died."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from worker.contract import records
from worker.contract.errors import Conflict, NotFound
from worker.contract.ids import SHARDS, shard_of, shard_of_id
from worker.contract.index import Index
from worker.contract.keys import Keys
from worker.contract.memory.transfer import ConversationExport
from worker.contract.schemas import (
    CONVERSATION_VERSION,
    Conversation,
    ConversationSettings,
    Erasure,
    Line,
    StoredMessage,
    Summary,
)
from worker.contract.server.connection import Connection
from worker.contract.server.link import Argument
from worker.contract.settings import ContractSettings

PAGE: Final = 1_000
"""Messages that are read at a time."""
LOOKED_AT: Final = 200
"""Listed conversations that are looked at together behind those that have expired."""
GONE_MS: Final = 86_400_000
"""How long the id of a turn is remembered that was erased, or posted under a key: no repetition brings it
back."""


class ConversationStore:
    """Typed access to conversations; safe to share within one event loop."""

    def __init__(self, connection: Connection, settings: ContractSettings) -> None:
        self.connection = connection
        self.long = connection.apart()
        """For whole conversations: what others ask of Redis meanwhile does not wait for them."""
        self.keys = Keys(settings.namespace)
        self._index = Index(connection)
        self._lives = settings.conversation_ttl_seconds

    async def close(self) -> None:
        await self.long.close()

    async def open(
        self,
        tenant: str,
        conversation_id: str,
        settings: ConversationSettings,
        *,
        created_at: float | None = None,
        messages: Sequence[bytes] = (),
        summary: Summary | None = None,
    ) -> Conversation:
        """Create a conversation with the messages that it has already; Conflict when the tenant has it."""
        shard = shard_of(tenant, conversation_id)
        arguments: list[Argument] = [
            conversation_id, CONVERSATION_VERSION, settings.memory_k, records.encode(settings),
            settings.on_busy, self.lives_ms(settings), secrets.token_hex(8),
            "" if created_at is None else round(created_at * 1000), settings.memory,
            summary.messages if summary else 0, summary.text if summary else "", *messages,
        ]  # fmt: skip
        created = await (self.long if messages else self.connection).run(
            "open",
            [
                self.keys.conversation(tenant, conversation_id),
                self.keys.convs(tenant, shard),
                self.keys.messages(tenant, conversation_id),
                self.keys.history(tenant, conversation_id),
            ],
            arguments,
        )
        if not created:
            raise Conflict(f"conversation {conversation_id!r} exists already", code="conversation_exists")
        return await self.get(tenant, conversation_id)

    def lives_ms(self, settings: ConversationSettings) -> int:
        """How long a conversation with these settings lives after its last turn's end; 0 is for ever."""
        return int((self._lives if settings.ttl is None else settings.ttl) * 1000)

    async def get(self, tenant: str, conversation_id: str) -> Conversation:
        """Raises NotFound when the tenant has no such conversation."""
        return records.conversation(conversation_id, *await self._read(tenant, conversation_id))

    async def messages(
        self, tenant: str, conversation_id: str, after: int, limit: int
    ) -> list[StoredMessage]:
        """Stored messages in order, beginning behind the first `after`."""
        await self._of(tenant, conversation_id)
        name = self.keys.messages(tenant, conversation_id)
        stored = await self.long.command("LRANGE", name, after, after + limit - 1)
        return [msgspec.json.decode(message, type=StoredMessage) for message in stored]

    async def export(self, tenant: str, conversation_id: str) -> ConversationExport:
        """A conversation with all its messages as they are when this begins."""
        flat, messages = await self._whole(tenant, conversation_id)
        return ConversationExport(
            conversation_id=conversation_id,
            created_at=int(flat["created_at"]) / 1000,
            settings=msgspec.json.decode(flat["settings"], type=ConversationSettings),
            messages=[msgspec.json.decode(message, type=StoredMessage) for message in messages],
            summary=await self._summary(tenant, conversation_id, flat),
        )

    async def latest(
        self, tenant: str, before: tuple[int, str] | None, limit: int
    ) -> list[tuple[int, Conversation]]:
        """Conversations with the time of their latest turn in Unix milliseconds, the newest first.

        `before` is time and id of the last one that is known: several may have the same time.
        """
        indexes = [self.keys.convs(tenant, shard) for shard in range(SHARDS)]
        found, living = await self._index.page(indexes, before, limit), []
        while found:
            some = await self._living(tenant, found)
            living += some
            if len(some) == len(found) or len(living) >= limit:
                break
            found = await self._index.page(indexes, found[-1], max(LOOKED_AT, limit))
        return living[:limit]

    async def _living(self, tenant: str, found: Sequence[tuple[int, str]]) -> list[tuple[int, Conversation]]:
        """Those that are still kept; the others are forgotten."""
        read = [command for _, name in found for command in self._record(tenant, name)]
        answers = await self.connection.commands(read)
        living, expired = [], []
        for (when, name), flat, stored in zip(found, answers[::2], answers[1::2], strict=True):
            if flat:
                living.append((when, records.conversation(name, records.fields(flat), stored)))
            else:
                expired.append(name)
        await self._index.tidy(
            [
                (self.keys.convs(tenant, shard_of(tenant, name)), self.keys.conversation(tenant, name), name)
                for name in expired
            ]
        )
        return living

    async def line(self, tenant: str, conversation_id: str) -> Line:
        """Who runs and who waits."""
        active, waiting = await self._of(
            tenant,
            conversation_id,
            ("HGET", self.keys.conversation(tenant, conversation_id), "active"),
            ("LRANGE", self.keys.fifo(tenant, conversation_id), 0, -1),
        )
        return Line(active=active.decode() if active else None, waiting=[name.decode() for name in waiting])

    async def reorder(
        self, tenant: str, conversation_id: str, seen: Sequence[str], wanted: Sequence[str]
    ) -> bool:
        """Put the waiting turns into another order; False when they no longer stand as `seen`."""
        name = self.keys.fifo(tenant, conversation_id)
        return bool(await self.connection.run("reorder", [name], [len(seen), *seen, *wanted]))

    async def erase(
        self,
        tenant: str,
        conversation_id: str,
        *,
        items: int = 0,
        item_turns: Sequence[str] = (),
        files: Sequence[str] = (),
    ) -> Erasure:
        """Erase a conversation and all its turns. NotFound where there is none and batches had no `items`.

        `item_turns` are turns that items of it are or would become: none of them comes back.
        """
        keys, shard = self.keys, shard_of(tenant, conversation_id)
        counts = await self.connection.run(
            "erase",
            keys.of_erasure(tenant, conversation_id),
            [conversation_id, keys.gone(shard), GONE_MS, keys.control(), secrets.token_hex(8), *item_turns],
        )
        if not counts and not items:
            raise unknown_conversation(conversation_id)
        messages, turns, stopped, schedules = counts or (0, 0, 0, 0)
        return Erasure(
            conversation_id=conversation_id,
            messages=messages,
            turns=turns,
            stopped=stopped,
            schedules=schedules,
            items=items,
            files=list(files),
        )

    async def dead(self, tenant: str, limit: int) -> list[str]:
        """Ids of a tenant's dead letters, the latest first; those whose turn has expired are forgotten."""
        indexes = [self.keys.dead(shard) for shard in range(SHARDS)]
        found: list[str] = []
        page, position = await self._index.page(indexes, None, limit), None
        while page and len(found) < limit:
            names, position = [name for _, name in page], page[-1]
            owners = await self.connection.commands(
                [("HGET", self.keys.turn(name), "tenant") for name in names]
            )
            of_each = dict(zip(names, owners, strict=True))
            found += [name for name, owner in of_each.items() if owner == tenant.encode()]
            gone = [name for name, owner in of_each.items() if owner is None]
            await self._index.tidy(
                [(self.keys.dead(shard_of_id(name)), self.keys.turn(name), name) for name in gone]
            )
            page = await self._index.page(indexes, position, limit)
        return found[:limit]

    async def is_dead(self, turn_id: str) -> bool:
        """Whether a turn is a dead letter."""
        index = self.keys.dead(shard_of_id(turn_id))
        return await self.connection.command("ZSCORE", index, turn_id) is not None

    async def bury(self, turn_id: str) -> bool:
        """Take a turn from the dead letters; False when it is none."""
        return bool(await self.connection.run("bury", [self.keys.dead(shard_of_id(turn_id))], [turn_id]))

    async def _whole(self, tenant: str, conversation_id: str) -> tuple[dict[str, bytes], list[bytes]]:
        """A conversation's record and its messages; read again when somebody went back in it."""
        record, name, _ = self.keys.of_conversation(tenant, conversation_id)
        while True:
            flat, stored = await self._read(tenant, conversation_id)
            messages: list[bytes] = []
            page: list[bytes] = [b""]
            while page and len(messages) < stored:
                until = min(len(messages) + PAGE, stored)
                page = await self.long.command("LRANGE", name, len(messages), until - 1)
                messages += page
            if await self.connection.command("HGET", record, "moved") != flat.get("moved"):
                continue
            if not page:
                raise unknown_conversation(conversation_id)
            return flat, messages

    async def _summary(self, tenant: str, conversation_id: str, flat: dict[str, bytes]) -> Summary | None:
        field = f"summary:{records.text(flat.get('summary'))}"
        stored = await self.connection.command("HGET", self.keys.history(tenant, conversation_id), field)
        if stored is None:
            return None
        count, _, text = stored.partition(b"\n")
        return Summary(int(count), text.decode())

    async def _read(self, tenant: str, conversation_id: str) -> tuple[dict[str, bytes], int]:
        """A conversation's record and how many messages it has; raises NotFound."""
        flat, stored = await self.connection.commands(self._record(tenant, conversation_id))
        if not flat:
            raise unknown_conversation(conversation_id)
        return records.fields(flat), stored

    def _record(self, tenant: str, conversation_id: str) -> tuple[tuple[str, str], tuple[str, str]]:
        """The commands that read a conversation's record and how many messages it has."""
        return (
            ("HGETALL", self.keys.conversation(tenant, conversation_id)),
            ("LLEN", self.keys.messages(tenant, conversation_id)),
        )

    async def _of(self, tenant: str, conversation_id: str, *commands: Sequence[Argument]) -> list[Any]:
        """The replies to commands about a conversation; raises NotFound when there is none."""
        exists, *replies = await self.connection.commands(
            [("EXISTS", self.keys.conversation(tenant, conversation_id)), *commands]
        )
        if not exists:
            raise unknown_conversation(conversation_id)
        return replies


def unknown_conversation(conversation_id: str) -> NotFound:
    """The error of who asks for a conversation that the tenant does not have."""
    return NotFound(f"conversation {conversation_id!r} does not exist")
