"""What befalls the processes, and which turns each blow hits."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from random import Random
from typing import Final

from tests.chaos import blows, outages
from tests.chaos.evidence import Hit, Outage, Zombie
from tests.chaos.plan import AIMED, POINTS, Fault, Plan, Point
from tests.chaos.scene import Scene
from tests.chaos.stage import Node, Stage
from tests.chaos.view import LOOK_SECONDS, View
from tests.support.waiting import eventually

PATIENCE_SECONDS: Final = 120.0


class Faults:
    """Strikes one process after the other, as the plan says."""

    def __init__(self, plan: Plan, stage: Stage, view: View) -> None:
        self._plan = plan
        self._random = Random(f"strikes {plan.seed}")
        self._scene = Scene(plan, stage, view, self._random)
        self._seen: Counter[Fault] = Counter()
        self.hits: list[Hit] = []
        self.points: list[Point] = []
        self.outages: list[Outage] = []
        self.disturbed: list[tuple[float, float]] = []
        self.zombies: list[Zombie] = []
        self.held_after_exit: list[str] = []

    async def run(self) -> None:
        faults = self._plan.order()
        due = time.monotonic()
        for number, fault in enumerate(faults, start=1):
            due += self._plan.between * self._random.uniform(0.5, 1.5)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            worker = self._random.choice(self._scene.stage.workers)
            # Who hands back in time needs somebody to take it.
            for node in self._scene.stage.workers if fault == "rolls" else [worker]:
                await self._until_it_works(node)
            began = time.monotonic()
            hits = await self._strike(fault, worker)
            self.hits += hits
            self._seen[fault] += 1
            phases = ", ".join(
                f"{count} {phase}" for phase, count in Counter(hit.phase for hit in hits).items()
            )
            took = time.monotonic() - began
            sys.stderr.write(
                f"{number}/{len(faults)} {fault}, {took:.1f} s: {len(hits)} turns hit ({phases})\n"
            )
        over = time.time()
        await eventually(lambda: self._scene.stage.claimed_since(over), PATIENCE_SECONDS)

    async def _until_it_works(self, worker: Node) -> None:
        async def works() -> list[Hit]:
            return await self._scene.held("kills", worker, 0.0)

        await asyncio.to_thread(worker.service.ready)
        await eventually(works, PATIENCE_SECONDS, LOOK_SECONDS)

    async def _strike(self, fault: Fault, worker: Node) -> list[Hit]:
        scene, number, hits = self._scene, self._seen[fault], list[Hit]()
        match fault:
            case "kills":
                point = AIMED[number % len(AIMED)]
                if point is None:
                    hits = await blows.kill(scene, worker)
                else:
                    hits = await blows.kill_at(scene, fault, worker, point)
            case "points":
                point = POINTS[number % len(POINTS)]
                self.points.append(point)
                node = scene.stage.api if point.process == "api" else worker
                hits = await blows.kill_at(scene, fault, node, point)
            case "children":
                blows.kill_child(worker)
            case "storms" | "rolls":
                hits, held = await blows.dismiss(scene, fault, worker)
                self.held_after_exit += held
            case "zombies":
                hits, zombie = await blows.stop(scene, worker)
                self.zombies.append(zombie)
            case "provider":
                self.disturbed.append(await outages.disturb_provider(scene))
            case _:
                hits, outage = await outages.OUTAGE[fault](scene, worker)
                self.outages.append(outage)
        return hits
