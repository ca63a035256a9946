"""The parts of a worker that run turns, put together on the test's own loop, without Celery."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from aiforge.core.settings import AIForgeSettings
from aiforge.testing import FakeProvider
from tests.support.forks import no_forks
from worker.calls.gate import ProviderGate
from worker.calls.purse import Purses
from worker.contract.client import TurnClient
from worker.contract.settings import ContractSettings
from worker.contract.wakeups.wake import Waker
from worker.running.courtesy import Courtesy
from worker.running.slices import SliceRunner
from worker.running.specs import Specs
from worker.running.stream import Flusher
from worker.running.turns import TurnRunner
from worker.settings import WorkerSettings
from worker.suspects.forks import Forks
from worker.suspects.quarantine import Quarantine
from worker.upkeep.leases import Leases
from worker.upkeep.reaper import Reaper
from worker.upkeep.schedules import Schedules


def library(provider: FakeProvider, **settings: object) -> AIForgeSettings:
    """The library's settings for a fake provider; its answers are priced as gpt-4o-mini's."""
    known = {
        "PROVIDER": "openai",
        "OPENAI_API_KEY": "sk-test",
        "OPENAI_BASE_URL": provider.url,
        "MODEL": "gpt-4o-mini",
        "MAX_RETRIES": 1,
    }
    return AIForgeSettings.load(**{**known, **settings})


async def _always() -> bool:
    """Chats are said to wait: each wake-up runs one slice."""
    return True


class LocalWorker:
    """`async with LocalWorker(client, provider) as worker: await worker.turns.run(turn_id)`.

    Suspects need `forks`; further keywords are settings of the library.
    """

    def __init__(
        self,
        client: TurnClient,
        provider: FakeProvider,
        *,
        name: str = "local",
        forks: Forks | None = None,
        gate: ProviderGate | None = None,
        **more: object,
    ) -> None:
        self.draining = False
        self.leases = Leases()
        self.waker = Waker(client.settings)
        self.flusher = Flusher(client.turns)
        settings = library(provider, **more)
        purses = Purses(client.connection, client.settings, settings)
        specs = Specs(settings, gate, purses)
        forks = forks or no_forks()
        shared = client.settings.model_dump(include=set(ContractSettings.model_fields))
        quarantine = Quarantine(WorkerSettings(**shared), settings, forks, self.waker)
        courtesy = Courtesy()
        self.turns = TurnRunner(
            worker=name,
            store=client.turns,
            flusher=self.flusher,
            leases=self.leases,
            specs=specs,
            waker=self.waker,
            quarantine=quarantine,
            draining=lambda: self.draining,
            courtesy=courtesy,
        )
        self.slices = SliceRunner(
            store=client.turns,
            turns=self.turns,
            chats_wait=_always,
            batches=client.batches,
            leases=self.leases,
            specs=specs,
            waker=self.waker,
            quarantine=quarantine,
            draining=lambda: self.draining,
            courtesy=courtesy,
        )
        self.reaper = Reaper(
            name,
            client.turns,
            client.batches,
            client.files,
            schedules=Schedules(client),
            purses=purses,
            waker=self.waker,
        )
        self._running: set[asyncio.Task[None]] = set()

    def start(self, turn_id: str) -> asyncio.Task[None]:
        """Run a turn beside the test."""
        task = asyncio.create_task(self.turns.run(turn_id))
        self._running.add(task)
        return task

    def start_slice(self, batch_id: str) -> asyncio.Task[None]:
        """Run a batch's next slice beside the test."""
        task = asyncio.create_task(self.slices.run(batch_id))
        self._running.add(task)
        return task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leases.stop_all("handed_back")
        await asyncio.gather(*self._running, return_exceptions=kind is not None)
        await self.slices.close()
        await self.waker.close()
