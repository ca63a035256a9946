"""Who a free slot is for: batches share the workers' slots by tenant, and a tenant's share by batch.

A wake-up of the batch lane says that there is work for one slot, not whose: the worker asks here. What
stands here is advice and can be wrong or lost; what may run is decided by the batch's own record. It spans
shards and so has a hash tag of its own.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from worker.contract.index import pairs
from worker.contract.keys import Keys
from worker.contract.server.connection import Connection
from worker.contract.server.link import Argument
from worker.contract.settings import ContractSettings

HEAD_START: Final = 16
"""Slots by which a new batch is ahead of the others, and which make way for it."""
NEW_MS: Final = 60_000
"""For how long slots make way for a new batch at most."""
MOST: Final = 64
"""Newcomers that are looked at."""
KEEP_MS: Final = 8 * 86_400_000
"""How long it is remembered of a batch that nobody serves any more."""


class Picked(NamedTuple):
    """The batch that is next."""

    batch_id: str
    tenant: str


class Share:
    """Typed access to the sharing of slots; safe to share within one event loop."""

    def __init__(self, connection: Connection, settings: ContractSettings) -> None:
        self._connection = connection
        self._keys = Keys(settings.namespace)
        self._weights = [part for pair in settings.tenant_weights.items() for part in pair]

    async def join(
        self, batch_id: str, tenant: str, *, weight: float = 1.0, expires_at: float | None = None
    ) -> None:
        """Let a batch take part that has items to hand out; `expires_at` is in Unix seconds."""
        ends: Argument = "" if expires_at is None else int(expires_at * 1000)
        arguments: list[Argument] = [batch_id, tenant, weight, ends, HEAD_START, KEEP_MS, NEW_MS]
        await self._connection.run("share_join", self._keys.of_share(tenant, batch_id), arguments)

    async def pick(self) -> Picked | None:
        """The batch that is next, charged with one slot; None when no batch takes part."""
        keys = self._keys
        arguments: list[Argument] = [keys.share(""), keys.entry(""), *self._weights]
        names = [keys.shares(), keys.clock(), keys.newcomers()]
        picked = await self._connection.run("share_pick", names, arguments)
        return Picked(*(part.decode() for part in picked)) if picked else None

    async def newcomers(self) -> dict[str, int]:
        """The batches that have come just now, and how many slots each may still expect at once."""
        found = await self._connection.command("ZRANGE", self._keys.newcomers(), 0, MOST - 1, "WITHSCORES")
        return {name.decode(): int(float(slots)) for name, slots in pairs(found)}

    async def leave(self, batch_id: str, tenant: str, *, for_good: bool) -> None:
        """Take a batch out: until it joins again, or because it is over."""
        keys = self._keys.of_share(tenant, batch_id)
        await self._connection.run("share_leave", keys, [batch_id, tenant, int(for_good)])
