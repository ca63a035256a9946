"""What comes before and after the items of a batch that is a file: lines are stored, results written."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from worker.contract import records
from worker.contract.batch.batches import BatchStore, Slice
from worker.contract.batch.entries import bare
from worker.contract.batch.line_schemas import LineErrors
from worker.contract.batch.rows import READ_BYTES
from worker.contract.errors import NotFound
from worker.contract.schemas import BATCH_VERSION, BatchState
from worker.contract.server.link import Argument
from worker.contract.upkeep import WAKE_MS


class Ending(NamedTuple):
    """How a batch ends: with how many items, as `completed`, `expired` or `cancelled`, and in which run."""

    total: int
    ends_as: str
    run: int


class _Identified(msgspec.Struct):
    id: str


class BatchSteps:
    """The transitions of a batch's steps; each is refused when the step was given to another."""

    def __init__(self, batches: BatchStore) -> None:
        self._batches = batches
        self._ttl_ms = int(batches.settings.batch_ttl_seconds * 1000)

    async def begin(self, step: Slice, total: int, errors: LineErrors | None, *, turns: bool = False) -> str:
        """Say that all lines are stored, or what is wrong with them, and whether some continue conversations;
        the batch's state.

        It is `missing` when lines that were stored are gone, and empty when another has the step.
        """
        wrong: Argument = "" if errors is None else records.encode(errors)
        version: Argument = BATCH_VERSION if turns else ""
        arguments: list[Argument] = [
            step.batch_id, step.fence, total, wrong, self._ttl_ms, WAKE_MS, version,
        ]  # fmt: skip
        return await self._run("batch_begin", step, arguments)

    async def wanted(self, step: Slice) -> bool:
        """Whether the lines of the batch are still to be read: nobody has cancelled it."""
        name = self._batches.keys.batch(step.batch_id)
        state = await self._batches.connection.command("HGET", name, "state")
        return records.text(state) == BatchState.VALIDATING

    async def ending(self, step: Slice) -> Ending:
        """Raises NotFound when the batch is gone."""
        name = self._batches.keys.batch(step.batch_id)
        reply = await self._batches.connection.command("HMGET", name, "total", "ends_as", "runs")
        if reply[0] is None or reply[1] is None:
            raise NotFound(f"batch {step.batch_id!r} has ended")
        return Ending(int(reply[0]), reply[1].decode(), int(reply[2] or 1))

    async def ids(self, step: Slice, first: int, last: int) -> list[str]:
        """The callers' own ids of some lines, `last` included; '' where a line never had one."""
        items, found = self._batches.keys.items(step.batch_id), list[str]()
        while first + len(found) <= last:
            bounds = [first + len(found), last, READ_BYTES]
            entries = await self._batches.connection.run("batch_entries", [items], bounds)
            if not entries:
                raise NotFound(f"batch {step.batch_id!r} has ended")
            found += [_id(entry) for entry in entries]
        return found

    async def close(self, step: Slice, output: str | None, errors: str | None) -> str:
        """Say which files can be read now; the batch's state, empty when another has the step."""
        arguments: list[Argument] = [step.batch_id, step.fence, output or "", errors or "", self._ttl_ms]
        return await self._run("batch_close", step, arguments)

    async def _run(self, script: str, step: Slice, arguments: list[Argument]) -> str:
        keys = self._batches.keys.of_batch(step.batch_id)
        return records.text(await self._batches.connection.run(script, keys, arguments))


def _id(entry: bytes) -> str:
    if entry.startswith(b"="):
        return str(msgspec.json.decode(entry.partition(b" ")[2]))
    return msgspec.json.decode(bare(entry), type=_Identified).id if entry.startswith((b"{", b">")) else ""
