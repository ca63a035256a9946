"""What befalls the workers, and which turns each blow hits."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from random import Random
from typing import Final, assert_never

from tests.chaos.evidence import Hit
from tests.chaos.plan import Fault, Plan
from tests.chaos.stage import Stage, runs_in
from tests.chaos.view import View
from tests.support.processes import Service
from tests.support.waiting import eventually

PATIENCE_SECONDS: Final = 30.0


class Faults:
    """Strikes one worker after the other, as the plan says."""

    def __init__(self, plan: Plan, stage: Stage, view: View) -> None:
        self._plan = plan
        self._stage = stage
        self._view = view
        self._random = Random(f"strikes {plan.seed}")
        self.hits: list[Hit] = []
        self.held_after_exit: list[str] = []
        self.outages: list[float] = []
        """When the Redis server was killed, in Unix seconds."""

    async def run(self) -> None:
        faults = self._plan.faults()
        for number, fault in enumerate(faults, start=1):
            await asyncio.sleep(self._plan.pause * self._random.uniform(0.5, 1.5))
            worker = self._random.choice(self._stage.workers)
            await self._until_it_works(worker)
            hits = await self._strike(fault, worker)
            self.hits += hits
            phases = ", ".join(
                f"{count} {phase}" for phase, count in Counter(hit.phase for hit in hits).items()
            )
            sys.stderr.write(f"{number}/{len(faults)} {fault}: {len(hits)} turns hit ({phases})\n")

    async def _until_it_works(self, worker: Service) -> None:
        async def works() -> list[Hit]:
            return await self._held("kill", worker, 0.0)

        await asyncio.to_thread(worker.ready)
        await eventually(works, PATIENCE_SECONDS)

    async def _strike(self, fault: Fault, worker: Service) -> list[Hit]:
        match fault:
            case "kill":
                return await self._kill(worker)
            case "term":
                return await self._terminate(worker)
            case "stop":
                return await self._stop(worker)
            case "redis":
                return await self._restart_redis()
            case _:
                assert_never(fault)

    async def _kill(self, worker: Service) -> list[Hit]:
        await self._stage.count_late(worker)
        at = time.time()
        worker.kill()
        self._stage.replace(worker)
        return await self._held("kill", worker, at)

    async def _terminate(self, worker: Service) -> list[Hit]:
        await self._stage.count_late(worker)
        hits = await self._held("term", worker, time.time())
        worker.signal(signal.SIGTERM)
        if self._random.random() < 0.5:
            await asyncio.sleep(self._random.uniform(0.0, 0.2))
            worker.signal(signal.SIGTERM)
        ended = await asyncio.to_thread(worker.process.wait, PATIENCE_SECONDS)
        assert ended == 0, f"a worker ended with {ended} after SIGTERM\n{worker.output}"
        self._stage.replace(worker)
        self.held_after_exit += [hit.turn_id for hit in await self._held("term", worker, 0.0)]
        return hits

    async def _stop(self, worker: Service) -> list[Hit]:
        """It goes on when another worker answers its turns: its own answers come too late from then on."""
        at = time.time()
        worker.signal(signal.SIGSTOP)
        try:
            hits = await self._held("stop", worker, at)

            async def given_up() -> bool:
                fences = await self._view.fences([hit.turn_id for hit in hits])
                return any(fence > hit.fence for hit, fence in zip(hits, fences, strict=True))

            await eventually(given_up, self._plan.lease + PATIENCE_SECONDS)
            await asyncio.sleep(self._random.uniform(0.0, self._plan.answer_seconds))
        finally:
            worker.signal(signal.SIGCONT)
        return hits

    async def _restart_redis(self) -> list[Hit]:
        """No turn loses its attempt by this: what runs waits for the server to come back."""
        self.outages.append(time.time())
        self._stage.redis.kill()
        await asyncio.to_thread(self._stage.redis.start)
        return []

    async def _held(self, fault: Fault, worker: Service, at: float) -> list[Hit]:
        """The turns that run in this worker now."""
        return [
            Hit(fault, running.turn_id, running.fence, running.phase, at)
            for running in await self._view.running(self._plan.words)
            if runs_in(worker, running.worker)
        ]
