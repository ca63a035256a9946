"""Everything a process needs to run turns, put together once and taken apart in order."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import Final

from aiforge.core.settings import AIForgeSettings
from worker import metrics
from worker.calls.gate import ProviderGate, hear, providers_of, renew
from worker.calls.purse import Purses
from worker.contract.batch.batches import BatchStore
from worker.contract.batch.files import FileStore
from worker.contract.calls.providers import Providers
from worker.contract.client import TurnClient
from worker.contract.errors import Unavailable
from worker.contract.readers import Listener
from worker.contract.server.connection import Connection
from worker.contract.store import TurnStore
from worker.contract.wakeups.broker import on_redis
from worker.contract.wakeups.knock import Bell, Knocker
from worker.contract.wakeups.wake import Waker
from worker.loop import LoopThread, keep_up
from worker.running.courtesy import Courtesy
from worker.running.sharing import Chats
from worker.running.slices import SliceRunner
from worker.running.specs import Specs
from worker.running.stream import Flusher
from worker.running.turns import TurnRunner
from worker.settings import WorkerSettings
from worker.suspects.forks import Forks
from worker.suspects.quarantine import Quarantine
from worker.upkeep.leases import REASONS, Leases
from worker.upkeep.reaper import Reaper
from worker.upkeep.schedules import Schedules

PRESENCE_SECONDS: Final = 3.0
LAG_SECONDS: Final = 1.0
HAND_BACK_SECONDS: Final = 5.0


class Runtime:
    """One per process. Turns run on `turns_loop`, heartbeats, reaper and control on `upkeep`."""

    def __init__(self, settings: WorkerSettings, library: AIForgeSettings, worker: str, forks: Forks) -> None:
        assert settings.redis_url is not None
        self.settings = settings
        self._library = library
        self.worker = worker
        self.leases = Leases()
        self.turns_loop = LoopThread("turns")
        self.upkeep = LoopThread("upkeep")
        self.waker = Bell(settings, self.upkeep.loop) if on_redis(settings.broker) else Waker(settings)
        self._draining = False
        self._connection = Connection(settings.redis_url)
        self._upkeep_connection = Connection(settings.redis_url)
        self._store = TurnStore(self._upkeep_connection, settings)
        self._listener = Listener(self._upkeep_connection, self._store.keys)
        self._client = TurnClient(settings, self.waker)
        self._gate = ProviderGate(self._providers(self._connection), worker, library, settings.limits)
        self._purses = Purses(self._connection, settings, library)
        self._lanes = Knocker(settings) if on_redis(settings.broker) else None
        self.turns, self.slices = self.turns_loop.run(self._runners(library, forks))
        for task in (
            self._beat, self._watch, self._control, self._health, self._places, self._presence, self._lag,
        ):  # fmt: skip
            self.upkeep.submit(keep_up(task.__name__.strip("_"), task))

    @property
    def draining(self) -> bool:
        """No new work is taken."""
        return self._draining

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the leases were renewed last."""
        return time.monotonic() - self.leases.renewed_at

    def drain(self, grace: float) -> None:
        """Take nothing more; hand back what still runs after `grace` seconds. Safe in a signal handler."""
        self._draining = True
        self.upkeep.loop.call_soon_threadsafe(
            self.upkeep.loop.call_later, grace, self.leases.stop_all, "handed_back"
        )

    def stop(self) -> None:
        """End everything; what still runs is handed back first."""
        self._draining = True
        self.leases.stop_all("handed_back")
        self.upkeep.run(self.leases.let_go(HAND_BACK_SECONDS))
        self.turns_loop.run(self._gate.settle())
        self.turns_loop.run(self._purses.settled())
        self.turns_loop.run(self.slices.close())
        if self._lanes is not None:
            self.turns_loop.run(self._lanes.close())
        self.turns_loop.run(self._connection.close())
        self.turns_loop.stop()
        self.upkeep.run(self._close())
        self.upkeep.stop()

    async def _runners(self, library: AIForgeSettings, forks: Forks) -> tuple[TurnRunner, SliceRunner]:
        store = TurnStore(self._connection, self.settings)
        specs = Specs(library, self._gate, self._purses)
        quarantine = Quarantine(self.settings, library, forks, self.waker)
        courtesy = Courtesy()
        turns = TurnRunner(
            worker=self.worker,
            store=store,
            flusher=Flusher(store),
            leases=self.leases,
            specs=specs,
            waker=self.waker,
            quarantine=quarantine,
            draining=lambda: self._draining,
            courtesy=courtesy,
        )
        slices = SliceRunner(
            store=store,
            turns=turns,
            batches=BatchStore(self._connection, self.settings),
            leases=self.leases,
            specs=specs,
            waker=self.waker,
            quarantine=quarantine,
            draining=lambda: self._draining,
            chats_wait=Chats(self._lanes).wait,
            courtesy=courtesy,
        )
        return turns, slices

    async def _beat(self) -> None:
        await self.leases.keep(self._store, self.settings.lease_seconds / 4)

    def _providers(self, connection: Connection) -> Providers:
        return providers_of(self.settings, connection)

    async def _health(self) -> None:
        """Hear which models are not well."""
        await hear(self._gate, self._providers(self._upkeep_connection), self._listener, self.turns_loop.loop)

    async def _places(self) -> None:
        """Keep the places of the provider calls that go on."""
        await renew(self._gate, self._providers(self._upkeep_connection))

    async def _watch(self) -> None:
        batches = BatchStore(self._upkeep_connection, self.settings)
        files = FileStore(self._upkeep_connection, self.settings)
        schedules = Schedules(self._client)
        purses = Purses(self._upkeep_connection, self.settings, self._library)
        reaper = Reaper(
            self.worker, self._store, batches, files, schedules=schedules, purses=purses, waker=self.waker
        )
        await reaper.watch(lambda: self._draining)

    async def _presence(self) -> None:
        while not self._draining:
            try:
                await self._store.presence(self.worker, 4 * PRESENCE_SECONDS)
            except Unavailable:
                metrics.HEARTBEAT_AGE.set(self.heartbeat_age)
            await asyncio.sleep(PRESENCE_SECONDS)

    async def _control(self) -> None:
        """Stop the turns that someone wants to end. A message that says nothing known is nobody's."""
        async with self._listener.subscribe(self._store.keys.control()) as asked:
            while True:
                turn_id, _, how = (await asked.get()).decode(errors="replace").partition(" ")
                if how in REASONS:
                    self.leases.stop(turn_id, REASONS[how])

    async def _lag(self) -> None:
        """How late the turns' loop is; a turn that blocks it shows here, never in the heartbeats."""
        while not self._draining:
            asked = time.perf_counter()
            future = self.turns_loop.submit(asyncio.sleep(0))
            await asyncio.wrap_future(future)
            metrics.LOOP_LAG.set(time.perf_counter() - asked)
            await asyncio.sleep(LAG_SECONDS)

    async def _close(self) -> None:
        await self._client.close()
        await self._listener.close()
        await self._upkeep_connection.close()


def worker_name() -> str:
    """Unique among all processes that ever ran."""
    return f"{socket.gethostname()}:{os.getpid()}:{int(time.time() * 1000):x}"
