"""Blows to one process: it is killed, frozen or dismissed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import Final

from tests.chaos.evidence import Hit, Zombie
from tests.chaos.plan import Fault, Point
from tests.chaos.scene import Scene
from tests.chaos.stage import Node
from tests.chaos.tap import Trap
from tests.chaos.view import LOOK_SECONDS
from tests.support.processes import children
from tests.support.waiting import eventually

PATIENCE_SECONDS: Final = 120.0
ON_ITS_WAY_SECONDS: Final = 0.5
"""In which what a stopped process had sent reaches Redis."""
STORM: Final = 5
"""The most SIGTERMs of one storm."""


async def kill(scene: Scene, worker: Node) -> list[Hit]:
    """The whole group, or only the main process, whose children have to follow by themselves."""
    await scene.stage.count_late(worker)
    at = time.time()
    if scene.random.random() < 0.5:
        worker.service.signal(signal.SIGKILL)
    else:
        os.kill(worker.service.process.pid, signal.SIGKILL)
    await scene.stage.replace(worker)
    await scene.stage.gone(worker)
    return await scene.held("kills", worker, at)


def kill_child(worker: Node) -> None:
    """No turn runs there but suspects, which are handed back; the worker goes on."""
    for child in children(worker.service.process.pid)[:1]:
        os.kill(child, signal.SIGKILL)


async def kill_at(scene: Scene, fault: Fault, node: Node, point: Point) -> list[Hit]:
    """Kill a process at the next call of a script; nothing happens if it calls none."""
    trap = Trap(point.script, point.moment, lambda: node.service.signal(signal.SIGKILL))
    if node is not scene.stage.api:
        await scene.stage.count_late(node)
    node.tap.set(trap)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            call = await trap.sprung
    except TimeoutError:
        node.tap.take_away()
        return []
    finally:
        trap.let_go()
    at = time.time()
    await scene.stage.replace(node)
    await scene.stage.gone(node)
    if point.process == "api":
        return []
    hits = await scene.held(fault, node, at)
    phase = await scene.view.phase_at(point, call.work)
    if phase is None:
        return hits
    others = [hit for hit in hits if hit.turn_id != call.work]
    (fence,) = await scene.view.fences([call.work])
    return [*others, Hit(fault, call.work, fence, phase, at)]


async def dismiss(scene: Scene, fault: Fault, worker: Node) -> tuple[list[Hit], list[str]]:
    """SIGTERM, once or as a storm; also the turns that it still holds when it has ended."""
    await scene.stage.count_late(worker)
    hits = await scene.held(fault, worker, await scene.view.now())
    worker.service.signal(signal.SIGTERM)
    if fault == "storms":
        for _ in range(scene.random.randint(1, STORM - 1)):
            await asyncio.sleep(scene.random.uniform(0.0, 0.2))
            worker.service.signal(signal.SIGTERM)
    await scene.stage.gone(worker)
    ended = worker.service.process.poll()
    assert ended == 0, f"a worker ended with {ended} after SIGTERM\n{worker.service.output}"
    held = await scene.held(fault, worker, 0.0)
    new = await scene.stage.replace(worker)
    if fault == "rolls":
        await asyncio.to_thread(new.service.ready)
    return hits, [hit.turn_id for hit in held]


async def stop(scene: Scene, worker: Node) -> tuple[list[Hit], Zombie]:
    """Freeze a worker at a commit until others have all its turns: that commit, and all that it does with
    these turns from then on, comes too late."""
    trap = Trap("finish", "before", lambda: worker.service.signal(signal.SIGSTOP), late=True)
    worker.tap.set(trap)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            call = await trap.sprung
        at = time.time()
        await asyncio.sleep(ON_ITS_WAY_SECONDS)
        hits = await scene.held("zombies", worker, at)

        async def given_up() -> bool:
            fences = await scene.view.fences([hit.turn_id for hit in hits])
            return all(fence > hit.fence for hit, fence in zip(hits, fences, strict=True))

        await eventually(given_up, scene.plan.lease + PATIENCE_SECONDS, LOOK_SECONDS)
    finally:
        worker.tap.take_away()
        before = len(worker.tap.late)
        trap.let_go()
        worker.service.signal(signal.SIGCONT)
    commit = call.work, int(call.arguments[1])
    # Of a claim whose reply it has not read it may know nothing, and then it does nothing for that turn.
    known = {hit.turn_id for hit in hits if hit.phase != "before the first token"}

    def refused() -> set[str]:
        return {hit.turn_id for hit in hits}.intersection(worker.tap.late[before:])

    def settled() -> bool:
        too_late = refused() >= known and commit in worker.tap.late_commits
        return too_late or commit in worker.tap.commits

    with contextlib.suppress(AssertionError):
        await eventually(settled, scene.plan.lease + PATIENCE_SECONDS)
    late, held = refused(), len(known | refused())
    return hits, Zombie(held, len(late), commit in worker.tap.late_commits - worker.tap.commits)
