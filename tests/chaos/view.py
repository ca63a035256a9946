"""Looks into Redis beside the service's own scripts. Nothing here writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from aiforge.core.events import Token, decode
from tests.chaos.evidence import Accepted, Facts, Phase
from tests.chaos.plan import Point
from worker.contract import records
from worker.contract.client import TurnClient
from worker.contract.ids import SHARDS
from worker.contract.schemas import TERMINAL_STATES, TurnState
from worker.patience import patiently

TENANT = "default"
LOOK_SECONDS = 0.1
"""Between two looks at all turns: who looks all the time slows down what it looks at."""


class Running(NamedTuple):
    """A turn under a lease."""

    turn_id: str
    worker: bytes | None
    fence: int
    phase: Phase


class View:
    """One client's way to the keys; it waits for a Redis that is away."""

    def __init__(self, client: TurnClient) -> None:
        self._client = client
        self._keys = client.turns.keys

    async def running(self, words: int) -> list[Running]:
        """All turns under a lease, once Redis has read everything that was sent to it before."""
        await self._many([("PING",)])
        leases = await self._many([("ZRANGE", self._keys.leases(shard), 0, -1) for shard in range(SHARDS)])
        turns = [work.decode() for shard in leases for work in shard]
        fields = ("worker", "fence", "appended")
        found = await self._many([("HMGET", self._keys.turn(turn), *fields) for turn in turns])
        logs = await self._many(
            [
                ("LRANGE", self._keys.log(turn), -int(appended or 0), -1)
                for turn, (_, _, appended) in zip(turns, found, strict=True)
            ]
        )
        return [
            Running(turn, worker, int(fence), _phase(log if int(appended or 0) else [], words))
            for turn, (worker, fence, appended), log in zip(turns, found, logs, strict=True)
        ]

    async def now(self) -> float:
        """Redis's time, in Unix seconds."""
        ((seconds, microseconds),) = await self._many([("TIME",)])
        return int(seconds) + int(microseconds) / 1e6

    async def phase_at(self, point: Point, turn_id: str) -> Phase | None:
        """How far a turn was whose worker was killed at its claim or commit; None: as what is stored says."""
        match point.script, point.moment:
            case "claim", "before":
                return "before the claim"
            case "finish", _:
                (state,) = await self._many([("HGET", self._keys.turn(turn_id), "state")])
                return "before the commit" if state == b"running" else "after the commit"
        return None

    async def fences(self, turns: Sequence[str]) -> list[int]:
        found = await self._many([("HGET", self._keys.turn(turn), "fence") for turn in turns])
        return [int(fence) for fence in found]

    async def unfinished(self, turns: Sequence[str]) -> list[str]:
        states = await self._many([("HGET", self._keys.turn(turn), "state") for turn in turns])
        return [
            turn
            for turn, state in zip(turns, states, strict=True)
            if state is None or TurnState(state.decode()) not in TERMINAL_STATES
        ]

    async def facts(self, turn: Accepted) -> Facts | None:
        """None for a turn that is gone."""
        turn_id, keys = turn.turn_id, self._keys
        names = keys.turn(turn_id), keys.log(turn_id), keys.ledger(turn_id)
        fence, log, *lives = await self._many(
            [("HGET", names[0], "fence"), ("LRANGE", names[1], 0, -1), *(("PTTL", name) for name in names)]
        )
        if fence is None:
            return None
        return Facts(
            turn=await self._client.turn(turn_id),
            fence=int(fence),
            log=[decode(event) for event in log],
            ledger=await self._client.turns.calls(turn_id),
            expires=all(life > 0 for life in lives),
        )

    async def leftovers(self, conversations: Sequence[str]) -> list[str]:
        """The names of the indexes and queues that are not empty, conversations that wait for a turn."""
        keys = self._keys
        indexes = [
            name(shard)
            for shard in range(SHARDS)
            for name in (keys.leases, keys.fences, keys.ready, keys.wakes, keys.due)
        ] + [keys.fifo(TENANT, conversation) for conversation in conversations]
        exist = await self._many([("EXISTS", name) for name in indexes])
        owners = [keys.conversation(TENANT, conversation) for conversation in conversations]
        active = await self._many([("HGET", name, "active") for name in owners])
        return [name for name, there in zip(indexes, exist, strict=True) if there] + [
            f"{name} active {records.text(turn)}" for name, turn in zip(owners, active, strict=True) if turn
        ]

    async def _many(self, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
        return await patiently(lambda: self._client.connection.commands(commands))


def _phase(said: Sequence[bytes], words: int) -> Phase:
    """How far a turn is that has appended these events."""
    if not said:
        return "before the first token"
    text = "".join(event.text for event in map(decode, said) if isinstance(event, Token))
    return "before the commit" if text.count(" ") >= words else "streaming"
