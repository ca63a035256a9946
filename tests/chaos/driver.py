"""One run: callers, workers and faults all at once, then everything that can be known about it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import httpx

from aiforge.client import AsyncClient
from tests.chaos.evidence import Asked, Evidence, Facts
from tests.chaos.faults import Faults
from tests.chaos.load import Load
from tests.chaos.plan import Plan
from tests.chaos.stage import NAMESPACE, Stage
from tests.chaos.view import View
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.errors import NotFound
from worker.contract.settings import ContractSettings

END_SECONDS: Final = 120.0
"""How long after the last fault everything may take to end; what has not by then counts as lost."""
READ_SECONDS: Final = 15.0
"""How long after that readers may take to see it."""


async def run(plan: Plan, folder: Path) -> Evidence:
    """Play a plan with real processes, whose output is in `folder`."""
    with Stage.open(plan, folder) as stage:
        await stage.ready()
        settings = ContractSettings(redis_url=stage.redis_url, namespace=NAMESPACE)
        async with AsyncClient(stage.api.url) as caller, await TurnClient.connect(settings) as client:
            load, view = Load(plan, caller), View(client)
            faults = Faults(plan, stage, view)
            await _play(load, faults, view)
            await stage.end_workers()
            return await _collect(plan, stage=stage, load=load, faults=faults, client=client, view=view)


async def _play(load: Load, faults: Faults, view: View) -> None:
    calling = asyncio.create_task(load.run())
    try:
        await faults.run()
        load.over.set()
        with contextlib.suppress(TimeoutError, AssertionError):
            await _all_ended(load, view)
            await asyncio.wait_for(calling, READ_SECONDS)
    finally:
        calling.cancel()
        await asyncio.wait([calling])
    if not calling.cancelled():
        calling.result()


async def _all_ended(load: Load, view: View) -> None:
    running = [turn.turn_id for accepted in load.accepted.values() for turn in accepted]

    async def ended() -> bool:
        running[:] = await view.unfinished(running)
        return not running

    await eventually(ended, END_SECONDS)


async def _collect(
    plan: Plan, *, stage: Stage, load: Load, faults: Faults, client: TurnClient, view: View
) -> Evidence:
    facts: dict[str, Facts] = {}
    for turn in (turn for accepted in load.accepted.values() for turn in accepted):
        with contextlib.suppress(NotFound):
            facts[turn.turn_id] = await view.facts(turn)
    return Evidence(
        plan=plan,
        accepted=load.accepted,
        refused=load.refused,
        readings=load.readings,
        hits=faults.hits,
        outages=faults.outages,
        held_after_exit=faults.held_after_exit,
        late=dict(stage.late),
        facts=facts,
        memory={name: await client.messages(name) for name in load.accepted},
        asked=await _asked(stage),
        totals=(await client.stats()).totals,
        leftovers=await view.leftovers(list(load.accepted)),
        seconds=load.seconds,
    )


async def _asked(stage: Stage) -> list[Asked]:
    """The provider's own log."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        reply = await http.get(stage.provider.url.removesuffix("/v1") + "/calls")
    return [
        Asked(call["number"], call["call_id"] or "", call["arrived"], call["body"]["messages"])
        for call in reply.json()["calls"]
    ]
