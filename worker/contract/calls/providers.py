"""The health of models, shared by all workers: their pace, who calls them now, and whether they answer.

There is one small record for each model at an endpoint, and it holds nothing of a tenant: no text and no
key. A process says in one script call what has become of its calls, and asks for places for the next ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from aiforge.core.setting_types import Limit
from worker.contract.errors import InvalidInput, NotFound
from worker.contract.keys import Keys
from worker.contract.server.connection import Connection
from worker.contract.server.link import Argument

Outcome: TypeAlias = Literal["ok", "limited", "overloaded", "failed", "none"]
"""How a call ended: answered; 429; 503; without an answer; or stopped, which says nothing of the model."""
Reason: TypeAlias = Literal[
    "", "open", "cooling", "probing", "concurrency", "requests", "tokens", "share", "chats"
]
Circuit: TypeAlias = Literal["closed", "open", "half_open"]

FAILURES: Final = 5
"""Failed calls in a row that open a circuit; twice as many within 30 s when they are half of all."""
PAUSE_SECONDS: Final = 5.0
"""How long a circuit is open at first; each time in a row twice as long, up to two minutes."""
JITTER: Final = 0.1
"""How much longer than it need be a pause is at most, as a share of it."""
MEMORY_SECONDS: Final = 5.0
"""How far back what was answered counts in full measure."""
PERMIT_SECONDS: Final = 15.0
"""How long a place is kept without being renewed, as by a worker that was killed."""
_NO_LIMIT: Final = Limit()
_SHOWN: Final = 10
"""How many names an error lists."""


class Ended(NamedTuple):
    """A call that is over; `beyond` is in tokens, `retry_after` in seconds."""

    permit: str
    outcome: Outcome
    beyond: int = 0
    retry_after: float | None = None


class Granted(NamedTuple):
    """How many calls of each kind may begin now; after how many seconds to ask for others, and why."""

    chats: int
    items: int
    wait: float
    reason: Reason
    well: bool


class ModelHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one model. Times are Unix seconds, rates per minute; None is no limit."""

    name: str
    circuit: Circuit
    open_until: float | None
    cooling_until: float | None
    failures: int
    """Failed calls in a row."""
    pace: float
    """The share of its usual pace that the model is asked at, 1 when all is well."""
    chats_in_flight: int
    items_in_flight: int
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrency: int | None


@dataclass(frozen=True, slots=True)
class Wants:
    """What a process has to say of a model: what ended, and the estimated tokens of each call that waits."""

    ended: Sequence[Ended] = ()
    chats: Sequence[int] = ()
    items: Sequence[int] = ()
    in_flight: int = 0
    answered: float = 0.0
    """Calls that were answered without having been asked for, over so many seconds; old ones count less."""
    seconds: float = 0.0


class Providers:
    """Typed access to the models' records; safe to share within one event loop."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        *,
        batch_share: float = 1.0,
        batch_floor: float = 0.0,
        pause: float = PAUSE_SECONDS,
        jitter: float = JITTER,
        permit: float = PERMIT_SECONDS,
    ) -> None:
        self._connection = connection
        self.keys = Keys(namespace)
        self._batch_share = batch_share
        self._batch_floor = min(batch_floor, batch_share)
        self._pause_ms = int(pause * 1000)
        self._jitter = jitter
        self.permit_seconds = permit

    async def step(
        self, name: str, process: str, number: int, wants: Wants, limit: Limit | None = None
    ) -> Granted:
        """Settle what ended and ask for places; `number` is new for each step of a process.

        The permits are `permit_of` the step.
        """
        allowed, keys = limit or _NO_LIMIT, self.keys
        names = [
            *keys.of_provider(name), keys.providers(), keys.unwell(), keys.step(name, process),
        ]  # fmt: skip
        arguments: list[Argument] = [
            name, process, number, int(self.permit_seconds * 1000), keys.health(),
            allowed.requests_per_minute or 0, allowed.tokens_per_minute or 0, allowed.concurrency or 0,
            int(allowed.burst_seconds * 1000), self._batch_share, self._batch_floor, FAILURES,
            self._pause_ms,
            f"{random.uniform(0, self._jitter):.3f}",  # noqa: S311  # spreads load, guards nothing
            wants.in_flight, f"{wants.answered:.3f}", int(wants.seconds * 1000),
            len(wants.ended), len(wants.chats), len(wants.items),
        ]  # fmt: skip
        for ended in wants.ended:
            after: Argument = "" if ended.retry_after is None else int(ended.retry_after * 1000 + 0.999)
            arguments += [ended.permit, ended.outcome, ended.beyond, after]
        reply = await self._connection.run("provider_step", names, [*arguments, *wants.chats, *wants.items])
        chats, items, wait_ms, reason, well = reply
        return Granted(chats, items, wait_ms / 1000, reason.decode(), bool(well))

    async def renew(self, name: str, permits: Sequence[str]) -> None:
        """Keep the places of calls that go on."""
        _, *names = self.keys.of_provider(name)
        await self._connection.run("provider_renew", names, [int(self.permit_seconds * 1000), *permits])

    async def unwell(self) -> set[str]:
        """The models that are not to be called without asking."""
        return {name.decode() for name in await self._connection.command("ZRANGE", self.keys.unwell(), 0, -1)}

    async def all(self) -> list[ModelHealth]:
        """Every model that was limited or not well within the last hour, by name."""
        names = await self._connection.command("ZRANGE", self.keys.providers(), 0, -1)
        reads: list[Sequence[Argument]] = [("TIME",)]
        for name in names:
            record, chats, items = self.keys.of_provider(name.decode())
            reads += [("HGETALL", record), ("ZCARD", chats), ("ZCARD", items)]
        (seconds, _), *replies = await self._connection.commands(reads)
        found = [
            _health(fields, chats, items, float(seconds))
            for fields, chats, items in zip(replies[::3], replies[1::3], replies[2::3], strict=True)
            if fields
        ]
        return sorted(found, key=lambda health: health.name)

    async def reset(self, name: str) -> None:
        """Forget what is held against a model.

        Its name may go without endpoint and provider where only one model has it so. Raises NotFound when
        nothing is known of it, InvalidInput when several are meant.
        """
        keys, known = self.keys, [health.name for health in await self.all()]
        meant = [name] if name in known else [one for one in known if name in _shorter(one)]
        if len(meant) > 1:
            raise InvalidInput(f"name: several models are called so: {_list(meant)}", param="name")
        for one in meant:
            names = [keys.of_provider(one)[0], keys.unwell()]
            if await self._connection.run("provider_reset", names, [one, keys.health()]):
                return
        others = (
            f"known: {_list(known)}" if known else "no model was limited or not well within the last hour"
        )
        raise NotFound(f"nothing is known of model {name[:200]!r}; {others}")


def permit_of(process: str, number: int, lane: Literal["chat", "batch"], index: int) -> str:
    """The name of a place; `index` counts the places of the lane in the step, from 1."""
    return f"{process}.{number}.{lane[0]}{index}"


def _shorter(name: str) -> set[str]:
    """What a model is called without its endpoint, its provider, and both."""
    without = {name, name.rpartition("@")[0] or name}
    return without | {one.partition("/")[2] for one in without}


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(name[:200] for name in names[:_SHOWN]) + more


def _health(fields: dict[bytes, bytes], chats: int, items: int, now: float) -> ModelHealth:
    def number(name: bytes, unless: float = 0) -> float:
        return float(fields.get(name, unless))

    circuit: Circuit = fields.get(b"state", b"closed").decode()  # type: ignore[assignment]  # the script's
    cool = number(b"cool_until") / 1000
    return ModelHealth(
        name=fields[b"name"].decode(),
        circuit=circuit,
        open_until=round(number(b"open_until") / 1000, 3) if circuit == "open" else None,
        cooling_until=round(cool, 3) if cool > now else None,
        failures=int(number(b"failures")),
        pace=round(number(b"factor", 1), 3),
        chats_in_flight=chats,
        items_in_flight=items,
        requests_per_minute=int(number(b"rpm")) or None,
        tokens_per_minute=int(number(b"tpm")) or None,
        concurrency=int(number(b"concurrency")) or None,
    )
