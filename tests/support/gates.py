"""Workers' gates on one Redis, and a provider that allows so much: for the tests of paces and health."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiforge.core.gate import Place
from aiforge.core.setting_types import Limit
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ProviderError, RateLimitError, UnavailableError, Usage
from aiforge.testing import FakeProvider
from tests.support.turns import Connect
from tests.support.waiting import eventually
from worker.calls.gate import ProviderGate, hear, renew
from worker.contract.calls.providers import Providers
from worker.contract.client import TurnClient
from worker.contract.readers import Listener

MODEL: Final = "gpt-4o-mini"
DOWN: Final = UnavailableError("down", status=500)


class Side(NamedTuple):
    """One worker's part of it."""

    gate: ProviderGate
    providers: Providers
    client: TurnClient
    tasks: list[asyncio.Task[None]]

    async def enter(self, *, batch: bool = False, tokens: int = 10, time_left: float = 30.0) -> Place:
        face = self.gate.items if batch else self.gate.chats
        return await face.enter("openai", MODEL, tokens=lambda: tokens, time_left=time_left)

    def start(self, *, batch: bool = False) -> asyncio.Task[Place]:
        return asyncio.create_task(self.enter(batch=batch))

    async def fail(self, error: ProviderError = DOWN, times: int = 1) -> None:
        for place in [await self.enter() for _ in range(times)]:
            place.leave(ok=False, error=error)

    def die(self) -> None:
        """Renew nothing any more, as one who was killed."""
        for task in self.tasks:
            task.cancel()


class Sides:
    """Makes workers' gates, each with a connection of its own."""

    def __init__(self, connect: Connect, stack: contextlib.AsyncExitStack) -> None:
        self._connect = connect
        self._stack = stack

    async def __call__(
        self, limit: Limit | None = None, provider: FakeProvider | None = None, **options: float
    ) -> Side:
        client = await self._connect()
        known = {"jitter": 0.0, "pause": 0.2, **options}
        providers = Providers(client.connection, client.settings.namespace, **known)
        listener = Listener(client.connection, providers.keys)
        known_library = AIForgeSettings.load(
            PROVIDER="openai", **({"OPENAI_BASE_URL": provider.url} if provider else {})
        )
        limits = {"openai/*": limit} if limit else {}
        gate = ProviderGate(providers, f"side-{id(client)}", known_library, limits)
        loop = asyncio.get_running_loop()
        tasks = [
            asyncio.create_task(hear(gate, providers, listener, loop)),
            asyncio.create_task(renew(gate, providers)),
        ]
        self._stack.push_async_callback(_ended, tasks)
        self._stack.push_async_callback(listener.close)
        await eventually(lambda: listener._live is not None)
        return Side(gate, providers, client, tasks)


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def passed(seconds: float) -> None:
    """So much time: how long a simulated call takes."""
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)


@dataclass
class Allowing:
    """A provider that answers after `latency` seconds, or refuses at once."""

    latency: float = 0.05
    rate: float = math.inf
    """How many calls a second it allows, counted by a bucket that holds `burst` of them."""
    burst: float = 10.0
    whole_seconds: bool = False
    """A Retry-After is rounded up."""
    every: int = 0
    """Every so manieth call is refused for no reason, with `after` seconds to wait."""
    after: float = 0.2
    down: ProviderError | None = None
    """What all calls fail with."""
    begun: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    _free: float = 0.0

    async def call(self) -> None:
        """One call; raises ProviderError."""
        now = time.monotonic()
        self.begun.append(now)
        refusal = self._refusal(now)
        if refusal is not None:
            self.refused.append(now)
            await passed(0.003)
            raise refusal
        await passed(self.latency)
        self.answered.append(time.monotonic())

    def _refusal(self, now: float) -> ProviderError | None:
        if self.down is not None:
            return self.down
        if self.every and len(self.begun) % self.every == self.every // 2:
            return RateLimitError("noise", status=429, retry_after=self.after)
        early = self._free - now - (self.burst - 1) / self.rate
        if early > 0:
            after = float(math.ceil(early)) if self.whole_seconds else early
            return RateLimitError("limit", status=429, retry_after=after)
        self._free = max(self._free, now) + 1 / self.rate
        return None


async def press(
    sides: Sequence[Side],
    provider: Allowing,
    *,
    width: int,
    seconds: float = math.inf,
    calls: float = math.inf,
    batch: bool = False,
) -> float:
    """Each side wants `width` calls at a time, until `seconds` are over or `calls` made; how long it took."""
    began = time.monotonic()
    left = calls

    async def want(side: Side) -> None:
        nonlocal left
        while left > 0 and time.monotonic() - began < seconds:
            left -= 1
            while not await _asked(side, provider, batch=batch):
                pass

    async with asyncio.TaskGroup() as group:
        for side in sides:
            for _ in range(width):
                group.create_task(want(side))
    return time.monotonic() - began


async def _asked(side: Side, provider: Allowing, *, batch: bool) -> bool:
    place = await side.enter(batch=batch, time_left=600.0)
    try:
        await provider.call()
    except ProviderError as error:
        if not place.leave(ok=False, error=error):
            await passed(error.retry_after or 0.5)
        return False
    place.leave(ok=True, usage=Usage(5, 5))
    return True
