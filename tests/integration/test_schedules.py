"""Schedules on real workers: one turn for each tick, also when the worker that fires them is killed."""

from __future__ import annotations

import time

import pytest

from aiforge.testing import FakeProvider
from tests.support.processes import Service, Start
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.ids import SHARDS
from worker.contract.places import keyed_place
from worker.contract.schedule.schedules import fire_key
from worker.contract.schedule.schemas import Schedule, ScheduleRequest
from worker.contract.schemas import TurnRequest

pytestmark = pytest.mark.anyio
TICKS = 100


async def every_second(client: TurnClient, conversation: str, first: int, last: int) -> Schedule:
    return await client.schedules.open(
        ScheduleRequest(
            cron="* * * * * *",
            conversation_id=conversation,
            turn=TurnRequest(message="Any news?"),
            catch_up="all",
            starts_at=first,
            ends_at=last,
        )
    )


async def looks_after_all(client: TurnClient, worker: Service) -> bool:
    """Whether this worker is the reaper of every shard."""
    keys = client.turns.keys
    owners = await client.connection.commands([("GET", keys.reaper(shard)) for shard in range(SHARDS)])
    return all(owner is not None and f":{worker.process.pid}:" in owner.decode() for owner in owners)


async def fired(client: TurnClient, schedules: list[Schedule]) -> list[int]:
    """How many ticks of each are done."""
    found = [await client.schedules.get(one.schedule_id) for one in schedules]
    return [
        0 if now.last_fire is None or made.next_at is None else now.last_fire.tick - made.next_at + 1
        for made, now in zip(schedules, found, strict=True)
    ]


async def posted(client: TurnClient, conversation: str) -> list[str]:
    name = client.turns.keys.turns("default", conversation)
    return sorted(turn.decode() for turn in await client.connection.command("ZRANGE", name, 0, -1))


def expected(schedule: Schedule, first: int, last: int) -> list[str]:
    keys = [fire_key(schedule.schedule_id, tick) for tick in range(first, last + 1)]
    return sorted(keyed_place("default", schedule.conversation_id, key).turn_id for key in keys)


async def test_a_worker_that_is_killed_while_it_fires_leaves_one_turn_for_each_tick(
    client: TurnClient, worker_process: Start, provider: FakeProvider
) -> None:
    first_worker = worker_process()
    await eventually(lambda: looks_after_all(client, first_worker), 30)
    worker_process()

    last = int(time.time()) - 1
    first = last - TICKS + 1
    names = [f"c{number}" for number in range(4)]
    schedules = [await every_second(client, name, first, last) for name in names]
    some = await eventually(lambda: _begun(client, schedules), 30)
    first_worker.kill()
    assert sum(some) < TICKS * len(schedules), "it was killed in the middle"

    await eventually(lambda: _over(client, schedules), 60)
    for name, schedule in zip(names, schedules, strict=True):
        assert await posted(client, name) == expected(schedule, first, last)
        await client.erase(name)


@pytest.mark.soak
async def test_every_second_has_its_turn_and_its_answer(
    client: TurnClient, worker_process: Start, provider: FakeProvider
) -> None:
    worker_process()
    worker_process()
    first = int(time.time()) + 1
    schedule = await every_second(client, "live", first, first + 2)
    await eventually(lambda: _over(client, [schedule]), 30)
    turns = await posted(client, "live")
    assert turns == expected(schedule, first, first + 2)
    assert [(await client.wait(turn, 30)).state for turn in turns] == ["completed"] * 3
    assert len(provider.calls) == 3
    assert len(await client.messages("live")) == 6


async def _begun(client: TurnClient, schedules: list[Schedule]) -> list[int]:
    counts = await fired(client, schedules)
    return counts if any(counts) else []


async def _over(client: TurnClient, schedules: list[Schedule]) -> bool:
    return all([(await client.schedules.get(one.schedule_id)).next_at is None for one in schedules])
