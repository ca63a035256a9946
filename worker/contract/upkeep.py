"""What keeps turns going: leases renewed, what is overdue found, calls written down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from aiforge.core.types import ProviderCall
from worker.contract import records
from worker.contract.ids import is_batch, shard_of_id
from worker.contract.keys import Keys
from worker.contract.schemas import Stop
from worker.contract.server.connection import Connection
from worker.contract.server.link import Argument, checked
from worker.contract.settings import ContractSettings

WAKE_MS: Final = 5_000
"""How long a sent wake-up may take before the reaper sends another."""
LONGEST_WAKE_MS: Final = 60_000
LOOK_MS: Final = 1_000
"""After how long a reaper looks again at ready work that it has not woken: none seemed to be missing."""
REAPER_LOCK_MS: Final = 1_000
REAP_LIMIT: Final = 500
WAKE_LIMIT: Final = 100
"""Ready works of a shard that are looked at in one round."""


class Overdue(NamedTuple):
    """What a reaper found on one shard: how many works are ready, leases that ran out, work to wake, turns
    and files whose time has come, and schedules that are due."""

    ready: int
    expired: list[str]
    due: list[str]
    timed: list[str]
    schedules: list[str]


class Upkeep:
    """The part of the store that works on many turns and slices at a time."""

    def __init__(self, connection: Connection, settings: ContractSettings) -> None:
        self.connection = connection
        self.settings = settings
        self.keys = Keys(settings.namespace)
        self._lease_ms = int(settings.lease_seconds * 1000)

    async def stops_asked(self, turn_ids: Sequence[str]) -> dict[str, Stop]:
        """Those of these running turns that someone asked to stop, and how."""
        if not turn_ids:
            return {}
        commands = [("HGET", self.keys.turn(turn_id), "cancel") for turn_id in turn_ids]
        asked = await self.connection.commands(commands)
        return {turn_id: how.decode() for turn_id, how in zip(turn_ids, asked, strict=True) if how}

    async def heartbeat(self, held: dict[str, int]) -> list[str]:
        """Renew the leases of works by fence, one script a shard; returns the works that are lost."""
        shards: dict[int, list[Argument]] = {}
        for work, fence in held.items():
            shards.setdefault(shard_of_id(work), [self._lease_ms]).extend((work, fence))
        replies = await self.connection.run_many(
            [
                ("heartbeat", [self.keys.leases(shard), self.keys.fences(shard)], arguments)
                for shard, arguments in shards.items()
            ]
        )
        return [work.decode() for reply in replies for work in checked(reply)]

    async def reap(self, shards: Sequence[int], owner: str) -> list[Overdue]:
        """List what is overdue on the shards whose reaper is, or now becomes, `owner`.

        Of the others only how much work is ready there is told: one queue serves them all.
        """
        keys = self.keys
        arguments: list[Argument] = [owner, REAPER_LOCK_MS, REAP_LIMIT, WAKE_LIMIT, LOOK_MS]
        replies = await self.connection.run_many(
            [
                (
                    "reap",
                    [
                        keys.reaper(shard),
                        keys.leases(shard),
                        keys.ready(shard),
                        keys.due(shard),
                        keys.crons(shard),
                    ],
                    arguments,
                )
                for shard in shards
            ]
        )
        return [
            Overdue(ready, *(map(_texts, lists) if lists else ([], [], [], [])))
            for ready, *lists in map(checked, replies)
        ]

    async def woken(self, works: Sequence[str]) -> None:
        """Note that ready work was woken again; the same work is due again ever later."""
        shards: dict[int, list[Argument]] = {}
        for work in works:
            shards.setdefault(shard_of_id(work), [WAKE_MS, LONGEST_WAKE_MS]).append(work)
        replies = await self.connection.run_many(
            [
                ("woken", [self.keys.ready(shard), self.keys.wakes(shard)], arguments)
                for shard, arguments in shards.items()
            ]
        )
        for reply in replies:
            checked(reply)

    async def ledger(
        self, owner: str, tenant: str, *, settled: Sequence[ProviderCall], intended: Sequence[ProviderCall]
    ) -> None:
        """Write rows outside of a claim or commit; `owner` is a turn or a batch."""
        keys = self.keys
        shard = shard_of_id(owner)
        records_of = [keys.batch(owner), keys.slices(owner)] if is_batch(owner) else [keys.turn(owner)]
        names = [keys.ledger(owner), keys.totals(shard), keys.usage(shard, tenant), *records_of]
        rows = [part for call in intended for part in (call.call_id, records.encode(call))]
        arguments: list[Argument] = [len(settled), len(intended), *records.settled(settled), *rows]
        await self.connection.run("ledger", names, arguments)

    async def calls(self, owner: str) -> list[ProviderCall]:
        """The provider calls of a turn or batch, the oldest first."""
        return records.calls(await self.connection.command("HGETALL", self.keys.ledger(owner)))

    async def presence(self, worker: str, alive_seconds: float) -> None:
        await self.connection.run("presence", [self.keys.workers()], [worker, int(alive_seconds * 1000)])


def _texts(members: Sequence[bytes]) -> list[str]:
    return [member.decode() for member in members]
