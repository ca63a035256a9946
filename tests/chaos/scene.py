"""What every blow needs to know: the plan, the processes, and which turns a worker holds."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.chaos.evidence import Hit
from tests.chaos.plan import Fault, Plan
from tests.chaos.stage import Node, Stage, runs_in
from tests.chaos.view import View


@dataclass(frozen=True)
class Scene:
    plan: Plan
    stage: Stage
    view: View
    random: Random

    async def held(self, fault: Fault, worker: Node | None, at: float) -> list[Hit]:
        """The turns that run in this worker now, or in any."""
        return [
            Hit(fault, running.turn_id, running.fence, running.phase, at)
            for running in await self.view.running(self.plan.words)
            if worker is None or runs_in(worker, running.worker)
        ]
