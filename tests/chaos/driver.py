"""One run: callers, workers and faults all at once, then everything that can be known about it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import httpx

from aiforge.client import AsyncClient
from tests.chaos.evidence import Asked, Evidence
from tests.chaos.faults import Faults
from tests.chaos.load import Load
from tests.chaos.plan import Plan
from tests.chaos.stage import NAMESPACE, Stage
from tests.chaos.view import LOOK_SECONDS, View
from tests.support import leaks
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.settings import ContractSettings

READ_SECONDS: Final = 15.0
"""How long after that readers may take to see it."""
AT_A_TIME: Final = 200
T = TypeVar("T")
R = TypeVar("R")


async def run(plan: Plan, folder: Path) -> Evidence:
    """Play a plan with real processes, whose output is in `folder`."""
    async with Stage.open(plan, folder) as stage:
        settings = ContractSettings(redis_url=stage.redis.url, namespace=NAMESPACE)
        async with AsyncClient(stage.api.service.url) as caller, await TurnClient.connect(settings) as client:
            load, view = Load(plan, caller), View(client)
            faults = Faults(plan, stage, view)
            lags = [0.0]
            looking = asyncio.create_task(_look_at_itself(lags))
            try:
                await _play(plan, load, faults, view)
            finally:
                looking.cancel()
            await stage.end_workers()
            seen = await _collect(plan, stage=stage, load=load, faults=faults, client=client, view=view)
            return replace(seen, lag=max(lags))


async def _look_at_itself(lags: list[float]) -> None:
    """How late this event loop is: every byte between the processes and Redis goes through it."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LOOK_SECONDS
        await asyncio.sleep(LOOK_SECONDS)
        lags.append(loop.time() - due)


async def _play(plan: Plan, load: Load, faults: Faults, view: View) -> None:
    calling = asyncio.create_task(load.run())
    try:
        await faults.run()
        load.over.set()
        await load.asked.wait()
        with contextlib.suppress(TimeoutError, AssertionError):
            await _all_ended(load, view, plan.patience)
            await asyncio.wait_for(calling, READ_SECONDS)
    finally:
        calling.cancel()
        await asyncio.wait([calling])
    if not calling.cancelled():
        calling.result()


async def _all_ended(load: Load, view: View, seconds: float) -> None:
    running = [turn.turn_id for accepted in load.accepted.values() for turn in accepted]

    async def ended() -> bool:
        running[:] = await view.unfinished(running)
        return not running

    await eventually(ended, seconds, LOOK_SECONDS)


async def _collect(
    plan: Plan, *, stage: Stage, load: Load, faults: Faults, client: TurnClient, view: View
) -> Evidence:
    turns = [turn for accepted in load.accepted.values() for turn in accepted]
    names = list(load.accepted)
    picture = await asyncio.to_thread(leaks.picture, stage.redis, NAMESPACE)
    return Evidence(
        plan=plan,
        accepted=load.accepted,
        refused=load.refused,
        repeated=load.repeated,
        readings=load.readings,
        hits=faults.hits,
        points=faults.points,
        outages=faults.outages,
        disturbed=faults.disturbed,
        zombies=faults.zombies,
        claims=[claim for tap in stage.taps for claim in tap.claims],
        held_after_exit=faults.held_after_exit,
        late=dict(stage.late),
        facts={facts.turn.turn_id: facts for facts in await _each(view.facts, turns) if facts is not None},
        memory=dict(zip(names, await _each(client.messages, names), strict=True)),
        asked=await _asked(stage),
        totals=(await client.stats()).totals,
        usage=await client.usage(group_by=("provider", "model")),
        leftovers=await view.leftovers(names) + leaks.problems(picture),
        seconds=load.seconds,
    )


async def _each(look: Callable[[T], Awaitable[R]], things: Sequence[T]) -> list[R]:
    """What there is to know of each, some hundreds at a time."""
    found: list[R] = []
    for start in range(0, len(things), AT_A_TIME):
        found += await asyncio.gather(*(look(thing) for thing in things[start : start + AT_A_TIME]))
    return found


async def _asked(stage: Stage) -> list[Asked]:
    """The provider's own log."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        reply = await http.get(stage.provider.url.removesuffix("/v1") + "/calls")
    return [
        Asked(call["number"], call["call_id"] or "", call["arrived"], call["body"]["messages"])
        for call in reply.json()["calls"]
    ]
