"""What schedules have of a conversation: items of the batches that they post."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from worker.contract import records
from worker.contract.batch.batches import BatchStore
from worker.contract.batch.erasing import BatchErasure, ErasedItems
from worker.contract.batch.item_places import item_place
from worker.contract.ids import SHARDS, keyed_batch_id
from worker.contract.memory.conversations import GONE_MS
from worker.contract.schedule.schedules import fire_key
from worker.contract.schedule.schemas import Terms
from worker.contract.schemas import BatchRequest
from worker.contract.server.link import Argument

_ERASED = b"erased"


class ScheduleErasure:
    """Erases a conversation's items in templates; whatever is repeated erases nothing twice."""

    def __init__(self, batches: BatchStore) -> None:
        self._connection = batches.connection
        self._keys = batches.keys
        self._batches = BatchErasure(batches)

    async def erase(self, tenant: str, conversation_id: str) -> ErasedItems:
        """Leave nothing of the conversation's items in any template. `turns` are those that they would have
        become at the next tick, so that whoever is about to fire it brings nothing back."""
        erased, turns = 0, list[str]()
        for shard in range(SHARDS):
            for name in await self._connection.command("ZRANGE", self._keys.schedules(tenant, shard), 0, -1):
                found = await self._erase_in(name.decode(), tenant, conversation_id)
                erased += len(found)
                turns += found
        return ErasedItems(erased, turns, [])

    async def posted(self, schedule_id: str, batch_id: str, tenant: str) -> None:
        """Erase in a batch that was posted just now what was taken out of its template meanwhile."""
        talks = await self._connection.command("HKEYS", self._keys.talks(batch_id))
        if not talks:
            return
        gone = self._keys.of_schedule(schedule_id, tenant, None)[3]
        template, why = await self._connection.commands(
            [("HGET", self._keys.schedule(schedule_id), "template"), ("GET", gone)]
        )
        if template is None and why != _ERASED:
            return
        left = set(_conversations(template)) if template is not None else set[str]()
        for conversation_id in {name.decode() for name in talks} - left:
            await self._batches.erase_in(batch_id, conversation_id)

    async def _erase_in(self, schedule_id: str, tenant: str, conversation_id: str) -> list[str]:
        """The turns that the items would have become."""
        while True:
            terms, template, next_ms = await self._connection.command(
                "HMGET", self._keys.schedule(schedule_id), "terms", "template", "next_ms"
            )
            if terms is None or msgspec.json.decode(terms, type=Terms).kind != "batch":
                return []
            batch = msgspec.json.decode(template, type=BatchRequest)
            items = [item for item in batch.items if item.conversation != conversation_id]
            if len(items) == len(batch.items):
                return []
            rest = records.encode(msgspec.structs.replace(batch, items=items)) if items else ""
            arguments: list[Argument] = [
                schedule_id,
                hashlib.sha1(template, usedforsecurity=False).hexdigest(),
                rest,
                GONE_MS,
            ]
            names = self._keys.of_schedule(schedule_id, tenant, None)
            if await self._connection.run("schedule_erase", names, arguments):
                return list(_turns(batch, schedule_id, tenant, conversation_id, next_ms))


def _conversations(template: bytes) -> Iterator[str]:
    for item in msgspec.json.decode(template, type=BatchRequest).items:
        if item.conversation is not None:
            yield item.conversation


def _turns(
    batch: BatchRequest, schedule_id: str, tenant: str, conversation_id: str, next_ms: bytes
) -> Iterator[str]:
    """Also of a schedule that is paused, whose items count all the same."""
    tick = int(next_ms) // 1000 if next_ms else 0
    batch_id = keyed_batch_id(tenant, fire_key(schedule_id, tick))
    for index, item in enumerate(batch.items):
        if item.conversation == conversation_id:
            yield item_place(tenant, conversation_id, batch_id, index, 0).turn_id
