"""An erased conversation leaves nothing in the batches that schedules post."""

from __future__ import annotations

import time

import pytest

from tests.contract.test_erase import MARK, everything
from tests.support.servers import RedisServer
from worker.contract.client import TurnClient
from worker.contract.errors import NotFound
from worker.contract.ids import keyed_batch_id
from worker.contract.schedule.erasing import ScheduleErasure
from worker.contract.schedule.schedules import Owed, fire_key
from worker.contract.schedule.schemas import Schedule, ScheduleRequest
from worker.contract.schemas import Batch, BatchItem, BatchRequest, BatchState

pytestmark = pytest.mark.anyio


async def overdue(client: TurnClient, *conversations: str | None) -> Schedule:
    """A schedule that is due, of a batch with an item of each conversation."""
    items = [
        BatchItem(id=f"{index}-{MARK}", message=f"{MARK} {name}", conversation=name)
        for index, name in enumerate(conversations)
    ]
    request = ScheduleRequest(
        cron="* * * * *", batch=BatchRequest(items=items), starts_at=time.time() - 3_600
    )
    return await client.schedules.open(request)


async def left(client: TurnClient, schedule: Schedule) -> list[str | None]:
    """The conversations of the items that it posts."""
    batch = (await client.schedules.get(schedule.schedule_id)).batch
    assert batch is not None
    return [item.conversation for item in batch.items]


async def owed(client: TurnClient, schedule: Schedule) -> Owed:
    found = await client.schedules.owed(schedule.schedule_id)
    assert found is not None
    return found


async def fire(client: TurnClient, due: Owed) -> Batch:
    """What a worker does that has read the schedule before."""
    schedule = due.schedule
    assert schedule.batch is not None
    batch_id = keyed_batch_id("default", fire_key(schedule.schedule_id, due.expected))
    await client.submit_batch(schedule.batch, batch_id=batch_id)
    await ScheduleErasure(client.batches).posted(schedule.schedule_id, batch_id, "default")
    return await client.batch(batch_id)


async def test_items_leave_the_template_and_a_schedule_of_nothing_else_goes(
    client: TurnClient, server: RedisServer
) -> None:
    mixed = await overdue(client, "a", "b", None, "a")
    only = await overdue(client, "a", "a")
    assert (await client.erase("a")).items == 4
    assert await left(client, mixed) == ["b", None]
    with pytest.raises(NotFound):
        await client.schedules.get(only.schedule_id)
    with pytest.raises(NotFound):
        await client.erase("a")
    assert f"{MARK} a".encode() not in everything(server)
    assert (await client.erase("b")).items == 1
    assert await left(client, mixed) == [None]
    assert f"{MARK} b".encode() not in everything(server)
    await client.schedules.delete(mixed.schedule_id)
    assert MARK.encode() not in everything(server)


@pytest.mark.parametrize("others", [(), ("b",)])
async def test_who_is_about_to_fire_brings_nothing_back(
    client: TurnClient, server: RedisServer, others: tuple[str, ...]
) -> None:
    made = await overdue(client, "a", *others)
    due = await owed(client, made)
    await client.erase("a")
    batch = await fire(client, due)
    assert f"{MARK} a".encode() not in everything(server)
    assert (batch.state, batch.failed) == (
        BatchState.IN_PROGRESS if others else BatchState.COMPLETED, 1,
    )  # fmt: skip
    assert batch.total == 1 + len(others)


async def test_what_a_deleted_schedule_has_posted_stays(client: TurnClient) -> None:
    made = await overdue(client, "a")
    due = await owed(client, made)
    await client.schedules.delete(made.schedule_id)
    batch = await fire(client, due)
    assert (batch.state, batch.failed) == (BatchState.IN_PROGRESS, 0)
    await client.erase("a")
