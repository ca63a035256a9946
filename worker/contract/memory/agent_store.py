"""Conversations of library agents in the service's Redis: `ChatAgent(store=RedisStore(…))`.

They are of their own kind beside the service's conversations, which know turns, leases and batches;
the two never meet, also under one id.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from aiforge.core.per_loop import PerLoop
from aiforge.core.types import ConfigError, ConversationMovedError, StoreError
from aiforge.modules.chat.stores.protocol import moved
from worker.contract.errors import Unavailable
from worker.contract.ids import SHARDS, is_tenant, shard_of
from worker.contract.keys import Keys
from worker.contract.server.connection import Connection
from worker.contract.server.link import Argument
from worker.contract.settings import ContractSettings

T = TypeVar("T")

MARK_BYTES: Final = 8
"""Stands before each entry and says who wrote it, so that a write whose reply was lost knows itself again."""


class RedisStore:
    """Conversations of one tenant in the Redis at `url`, with one pool of connections for each event loop.

    Any number of processes may use it at once. Without `url` and `namespace` it is where the service's
    settings say. Raises ConfigError when those name none, or on a wrong name.
    """

    def __init__(
        self, url: str | None = None, *, namespace: str | None = None, tenant: str = "default"
    ) -> None:
        if not is_tenant(tenant):
            raise ConfigError(
                f"tenant must be 1 to 128 letters, digits, dots, dashes or underscores, not {tenant!r}"
            )
        given = {"redis_url": url, "namespace": namespace}
        settings = ContractSettings.load(
            **{name: value for name, value in given.items() if value is not None}
        )
        if settings.redis_url is None:
            raise ConfigError(
                "AIFORGE_REDIS_URL: not set; set it, or name the server: RedisStore('redis://…')"
            )
        self._keys = Keys(settings.namespace)
        self._tenant = tenant
        self._connections = PerLoop(functools.partial(Connection, settings.redis_url), Connection.close)

    async def append(self, conversation_id: str, number: int, entry: bytes) -> None:
        written = await self._run(
            "versions_append",
            self._both(conversation_id),
            [number, _marked(entry), conversation_id],
        )
        if not written:
            raise ConversationMovedError(moved(conversation_id, number))

    async def read(self, conversation_id: str, *, after: int = 0) -> list[tuple[int, bytes]]:
        first, entries = await self._run("versions_read", [self._versions(conversation_id)], [after])
        return [(number, entry[MARK_BYTES:]) for number, entry in enumerate(entries, start=first)]

    async def compact(self, conversation_id: str, number: int, entry: bytes) -> None:
        written = await self._run(
            "versions_compact",
            [self._versions(conversation_id)],
            [number, _marked(entry)],
        )
        if not written:
            raise ConversationMovedError(moved(conversation_id, number))

    async def delete(self, conversation_id: str) -> None:
        await self._run("versions_delete", self._both(conversation_id), [conversation_id])

    async def conversations(self) -> list[str]:
        names = [self._keys.versioned(self._tenant, shard) for shard in range(SHARDS)]
        shards = await self._ask(
            lambda connection: connection.commands([("ZRANGE", name, 0, -1) for name in names])
        )
        return sorted(name.decode() for shard in shards for name in shard)

    async def close(self) -> None:
        """The running event loop's connections; another loop's are closed when it ends."""
        await self._connections.aclose()

    def _versions(self, conversation_id: str) -> str:
        return self._keys.versions(self._tenant, conversation_id)

    def _both(self, conversation_id: str) -> list[str]:
        """The conversation and the list that it is in."""
        shard = shard_of(self._tenant, conversation_id)
        return [self._versions(conversation_id), self._keys.versioned(self._tenant, shard)]

    async def _run(self, script: str, keys: list[str], arguments: list[Argument]) -> Any:
        return await self._ask(lambda connection: connection.run(script, keys, arguments))

    async def _ask(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        try:
            return await ask(await self._connections.get())
        except Unavailable as error:
            raise StoreError(str(error)) from error


def _marked(entry: bytes) -> bytes:
    return secrets.token_hex(MARK_BYTES // 2).encode() + entry
