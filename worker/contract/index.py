"""Indexes that are spread over the shards: members by time, read page by page as if they were one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, TypeAlias

from worker.contract import records
from worker.contract.ids import shard_of_id
from worker.contract.server.connection import Connection
from worker.contract.server.link import Argument, checked

Position: TypeAlias = tuple[int, str]
"""A member's time in Unix milliseconds, and the member: several may have the same time."""
STOOD_MS: Final = 3_600_000
"""How long it is remembered where a deleted member stood."""
_ENDS: Final = ("-inf", "+inf")


class Index:
    """Reads sorted sets whose scores are times."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def page(
        self, names: Sequence[str], after: Position | None, limit: int, *, oldest_first: bool = False
    ) -> list[Position]:
        """Up to `limit` members of all these sets together, behind one that is known."""
        commands = [_further(name, after, limit, oldest_first) for name in names]
        if after is not None:
            commands += [("ZRANGEBYSCORE", name, after[0], after[0], "WITHSCORES") for name in names]
        replies = await self._connection.commands(commands)
        found = {(int(float(score)), name.decode()) for reply in replies for name, score in pairs(reply)}
        ordered = sorted(found, reverse=not oldest_first)
        if after is not None:
            ordered = [one for one in ordered if (one > after if oldest_first else one < after)]
        return ordered[:limit]

    async def records(
        self,
        names: Sequence[str],
        after: Position | None,
        limit: int,
        *,
        own: Callable[[str], str],
        oldest_first: bool = False,
    ) -> AsyncIterator[tuple[str, dict[str, bytes]]]:
        """Members with their records, a page of `limit` after the other; `own` names a member's record, and
        those whose own has expired are forgotten."""
        while page := await self.page(names, after, limit, oldest_first=oldest_first):
            after = page[-1]
            read = [("HGETALL", own(member)) for _, member in page]
            for (_, member), flat in zip(page, await self._connection.commands(read), strict=True):
                if flat:
                    yield member, records.fields(flat)
                else:
                    await self.tidy([(names[shard_of_id(member)], own(member), member)])

    async def stood(self, name: str) -> int | None:
        """The time of a member that was deleted within the hour, by the key that remembers it; else None."""
        at = await self._connection.command("GET", name)
        return None if at is None else int(at)

    async def tidy(self, members: Sequence[tuple[str, str, str]]) -> None:
        """Forget those whose own key has expired: index, the member's own key, and the member."""
        calls = [("tidy", [index, key], [member]) for index, key, member in members]
        for reply in await self._connection.run_many(calls) if calls else ():
            checked(reply)


def _further(name: str, after: Position | None, limit: int, oldest_first: bool) -> tuple[Argument, ...]:
    lowest, highest = _ENDS
    if oldest_first:
        begin = lowest if after is None else f"({after[0]}"
        return ("ZRANGEBYSCORE", name, begin, highest, "WITHSCORES", "LIMIT", 0, limit)
    begin = highest if after is None else f"({after[0]}"
    return ("ZREVRANGEBYSCORE", name, begin, lowest, "WITHSCORES", "LIMIT", 0, limit)


def pairs(reply: Sequence[Any]) -> list[tuple[bytes, bytes]]:
    """Members and scores as RESP2 gives them in one list, RESP3 in pairs."""
    if reply and isinstance(reply[0], list):
        return [(name, score) for name, score in reply]
    return list(zip(reply[::2], reply[1::2], strict=True))
