"""A Redis Cluster asked as if it were one Link: each command goes to the node that holds its key's slot.

Who holds which slot is read from the cluster and read again after whatever speaks against it: a node that
does not answer, a slot that has moved, a cluster that calls itself down. Repeating is left to the caller.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,  # noqa: A004  # redis's own
    MovedError,
    RedisError,
)

from aiforge.core.topology import Address
from worker.contract.server.link import Argument, Link, Reply, checked
from worker.contract.server.servers import NODE_SECONDS, Live, Open, nodes_of

_Slots = dict[int, Address]
HOPS: Final = 5
"""How often a command is sent on; more often than that, the nodes do not agree."""
_ASKING: Final = ("ASKING",)


class _Sent(NamedTuple):
    """A command under way to a node; `asking` where that node is only about to get the slot."""

    at: int
    asking: bool


class Cluster:
    """One Link for each node; lives on one event loop."""

    def __init__(
        self,
        seeds: Sequence[Address],
        opener: Callable[[Address], Open],
        place_of_key: Callable[[Sequence[Argument]], int],
    ) -> None:
        """`opener` gives what opens connections to a node; any of `seeds` that answers names the others.

        `place_of_key` says which part of a command is its key; commands shorter than that have none.
        """
        self._seeds = seeds
        self._place_of_key = place_of_key
        self._opener = opener
        self._links: dict[Address, Link] = {}
        self._slots: _Slots = {}
        self._stale = True
        self._reading = asyncio.Lock()

    async def ask(self, commands: Iterable[Sequence[Argument]]) -> list[Reply]:
        """As Link's. Commands of one node stay in order; raises when any node's connection breaks."""
        asked = [tuple(command) for command in commands]
        if self._stale:
            await self._look()
        replies: list[Reply] = [None] * len(asked)
        todo: dict[Address, list[_Sent]] = {}
        for index, command in enumerate(asked):
            todo.setdefault(self._node_of(command), []).append(_Sent(index, asking=False))
        for _ in range(HOPS):
            await self._send(todo, asked, replies)
            todo = self._sent_on(todo, replies)
            if not todo:
                return replies
        raise ConnectionError("the nodes of the cluster do not agree on who holds a slot")

    def drop(self) -> None:
        """Give up the connections on which a reply is missing, and what is known of the nodes."""
        self._stale = True
        for link in self._links.values():
            if link.waits:
                link.drop()

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links.values()))

    async def open(self) -> Live:
        """A further connection to some node: what is published on one is heard on all."""
        if self._stale:
            await self._look()
        node = random.choice(list(set(self._slots.values())))  # noqa: S311  # no secret
        try:
            return await self._opener(node)()
        except (RedisError, OSError):
            self._stale = True
            raise

    async def _send(
        self, todo: dict[Address, list[_Sent]], asked: Sequence[Sequence[Argument]], replies: list[Reply]
    ) -> None:
        """Ask all nodes at once; every one has answered or failed when this returns or raises."""
        if len(todo) == 1:
            ((node, sent),) = todo.items()
            faults = [await self._ask_node(node, sent, asked, replies)]
        else:
            faults = await asyncio.gather(
                *(self._ask_node(node, sent, asked, replies) for node, sent in todo.items())
            )
        for fault in faults:
            if fault is not None:
                raise fault

    async def _ask_node(
        self, node: Address, sent: list[_Sent], asked: Sequence[Sequence[Argument]], replies: list[Reply]
    ) -> Exception | None:
        lines = [line for at, asking in sent for line in ((_ASKING, asked[at]) if asking else (asked[at],))]
        try:
            given = iter(await self._link(node).ask(lines))
        except (RedisError, OSError) as error:
            self._stale = True
            return error
        for at, asking in sent:
            if asking:
                next(given)
            replies[at] = next(given)
        return None

    def _sent_on(self, sent: dict[Address, list[_Sent]], replies: list[Reply]) -> dict[Address, list[_Sent]]:
        """The commands that were answered with the name of another node."""
        todo: dict[Address, list[_Sent]] = {}
        for node, commands in sent.items():
            for at, _ in commands:
                reply = replies[at]
                if isinstance(reply, ClusterDownError):
                    self._stale = True
                if not isinstance(reply, AskError):
                    continue
                other = Address(reply.host or node.host, reply.port)
                moved = isinstance(reply, MovedError)
                if moved:
                    self._slots[reply.slot_id] = other
                    self._stale = True
                todo.setdefault(other, []).append(_Sent(at, asking=not moved))
        return todo

    def _node_of(self, command: Sequence[Argument]) -> Address:
        place = self._place_of_key(command)
        slot = _slot(command[place]) if len(command) > place else next(iter(self._slots), 0)
        try:
            return self._slots[slot]
        except KeyError:
            self._stale = True
            raise ClusterDownError(f"CLUSTERDOWN slot {slot} is nobody's") from None

    async def _look(self) -> None:
        """Read who holds which slot from the first node that answers; any order, as each may be wrong."""
        async with self._reading:
            if not self._stale:
                return
            known = list(dict.fromkeys((*self._slots.values(), *self._seeds)))
            why: Exception = ConnectionError("no node of the cluster answers")
            for node in random.sample(known, len(known)):
                try:
                    async with asyncio.timeout(NODE_SECONDS):
                        ranges = await self._ranges(node)
                except TimeoutError:
                    self._links[node].drop()
                    continue
                except (ConnectionError, OSError) as error:
                    why = error
                    continue
                self._slots = {
                    slot: nodes_of(row, node)[0] for row in ranges for slot in range(row[0], row[1] + 1)
                }
                self._stale = False
                self._forget()
                return
            raise why

    async def _ranges(self, node: Address) -> Any:
        (reply,) = await self._link(node).ask([("CLUSTER", "SLOTS")])
        return checked(reply)

    def _link(self, node: Address) -> Link:
        if node not in self._links:
            self._links[node] = Link(self._opener(node))
        return self._links[node]

    def _forget(self) -> None:
        """Let go of nodes that hold nothing any more."""
        for node in set(self._links) - set(self._slots.values()):
            self._links.pop(node).drop()


def _slot(key: Argument) -> int:
    return int(key_slot(key if isinstance(key, bytes) else str(key).encode()))
