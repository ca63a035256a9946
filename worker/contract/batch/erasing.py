"""What batches have of a conversation: its items, and files with lines of it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from worker.contract import records
from worker.contract.batch.batches import BatchStore
from worker.contract.batch.item_places import item_place
from worker.contract.ids import SHARDS, output_file_id
from worker.contract.server.link import Argument
from worker.contract.upkeep import WAKE_MS

AT_ONCE: Final = 1_000
"""Batches that are looked at in one round trip."""


class ErasedItems(NamedTuple):
    """What was found of a conversation in the batches of its tenant."""

    items: int
    """How many items were erased."""
    turns: list[str]
    """The turns that items of it are, or would have become."""
    files: list[str]
    """Files with lines of it, which stay as they are."""


class BatchErasure:
    """Erases a conversation's items; whatever is repeated erases nothing twice."""

    def __init__(self, batches: BatchStore) -> None:
        self._batches = batches
        self._connection = batches.connection
        self._keys = batches.keys
        self._ttl_ms = int(batches.settings.batch_ttl_seconds * 1000)

    async def erase(self, tenant: str, conversation_id: str) -> ErasedItems:
        """Leave nothing of the conversation's items in any batch that was accepted so far."""
        erased, turns, files = 0, list[str](), list[str]()
        for batch_id in await self._with_items(tenant, conversation_id):
            count, places = await self.erase_in(batch_id, conversation_id)
            erased += count
            turns += [item_place(tenant, conversation_id, batch_id, *place).turn_id for place in places]
            files += await self._files(tenant, batch_id) if places else []
        return ErasedItems(erased, turns, await self._kept(files))

    async def erase_in(self, batch_id: str, conversation_id: str) -> tuple[int, list[tuple[int, int]]]:
        """How many items were erased, and index and retries of each of the conversation."""
        names, erased, places, at = self._keys.of_batch(batch_id), 0, list[tuple[int, int]](), ""
        while True:
            arguments: list[Argument] = [batch_id, conversation_id, at, self._ttl_ms, WAKE_MS]
            count, behind, found = await self._connection.run("batch_erase", names, arguments)
            erased += count
            places += zip(map(int, found[::2]), map(int, found[1::2]), strict=True)
            at = records.text(behind)
            if not at:
                return erased, places

    async def _with_items(self, tenant: str, conversation_id: str) -> list[str]:
        """The batches that have items of the conversation, or may yet store some."""
        keys = self._keys
        listed = await self._connection.commands(
            [("ZRANGE", keys.batches(shard, tenant), 0, -1) for shard in range(SHARDS)]
        )
        names = [name.decode() for members in listed for name in members]
        found: list[str] = []
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            replies: list[Any] = await self._connection.commands(
                [
                    command
                    for name in some
                    for command in (
                        ("HEXISTS", keys.talks(name), conversation_id),
                        ("HGET", keys.batch(name), "step"),
                    )
                ]
            )
            pairs = zip(some, replies[::2], replies[1::2], strict=True)
            found += [name for name, has, step in pairs if has or step == b"validate"]
        return found

    async def _files(self, tenant: str, batch_id: str) -> list[str]:
        """The files that a batch came as and that its results are written to."""
        fields = ("input_file", "output_file", "error_file", "step", "runs")
        record = await self._connection.command("HMGET", self._keys.batch(batch_id), *fields)
        *files, step, runs = (records.text(value) for value in record)
        if step == "finalize":
            files += [output_file_id(tenant, batch_id, int(runs or 1), kind) for kind in ("output", "error")]
        return [name for name in files if name]

    async def _kept(self, files: list[str]) -> list[str]:
        names = sorted(set(files))
        if not names:
            return []
        there = await self._connection.commands([("EXISTS", self._keys.pieces(name)) for name in names])
        return [name for name, exists in zip(names, there, strict=True) if exists]
