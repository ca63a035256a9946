"""One piece of work that a worker cannot look after keeps none of the others waiting."""

from __future__ import annotations

import time

import msgspec
import pytest

from aiforge.testing import FakeProvider
from tests.support.runners import LocalWorker
from tests.support.servers import RedisServer
from tests.support.slices import Sliced, take
from tests.support.turns import claim, expire, state, submit
from worker.contract.client import TurnClient
from worker.contract.schedule.schemas import Schedule, ScheduleRequest
from worker.contract.schemas import (
    BATCH_VERSION,
    TURN_VERSION,
    BatchItem,
    BatchRequest,
    TurnRequest,
    TurnState,
)

pytestmark = pytest.mark.anyio


async def every_second(client: TurnClient) -> Schedule:
    """It is due at once."""
    request = ScheduleRequest(
        cron="* * * * * *", starts_at=time.time() - 5, ends_at=time.time(), turn=TurnRequest(message="Hello?")
    )
    return await client.schedules.open(request)


async def test_a_dead_turn_of_a_newer_version_goes_back_and_so_does_every_other(
    client: TurnClient, provider: FakeProvider, server: RedisServer
) -> None:
    """A worker of the next version ran it; what its body holds cannot be read here."""
    newer, ours = await submit(client, conversation_id="c"), await submit(client, conversation_id="d")
    for place in (newer, ours):
        await claim(client.turns, place)
        await expire(client.turns, place.turn_id, int(place.turn_id[:2]))
    name = client.turns.keys.turn(newer.turn_id)
    server.ask("HSET", name, "version", TURN_VERSION + 1, "body", b'{"message":"Hello?","mood":"new"}')
    async with LocalWorker(client, provider) as worker:
        await worker.reaper.tick()
    for place in (newer, ours):
        assert server.ask("HGET", client.turns.keys.turn(place.turn_id), "state") == b"queued"
    (call,) = await client.turns.calls(newer.turn_id)
    assert (call.outcome, call.cost) == ("lost", None), "what it cost is not known here"
    assert await state(client, ours) is TurnState.QUEUED


async def test_so_does_a_dead_slice(client: TurnClient, provider: FakeProvider, server: RedisServer) -> None:
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="Hello?")]))
    ours = await submit(client)
    assert isinstance(await take(client.batches, batch.batch_id), Sliced)
    await claim(client.turns, ours)
    shard = int(batch.batch_id.removeprefix("batch_")[:2])
    await expire(client.turns, f"{batch.batch_id}/0", shard)
    await expire(client.turns, ours.turn_id, int(ours.turn_id[:2]))
    name, index = client.batches.keys.batch(batch.batch_id), client.batches.keys.items(batch.batch_id)
    server.ask("HSET", name, "version", BATCH_VERSION + 1)
    item = msgspec.json.decode(server.ask("LINDEX", index, 0))
    server.ask("LSET", index, 0, msgspec.json.encode({**item, "mood": "new"}))
    async with LocalWorker(client, provider) as worker:
        await worker.reaper.tick()
    assert server.ask("ZCARD", client.turns.keys.leases(shard)) == 0
    assert await state(client, ours) is TurnState.QUEUED


async def test_a_schedule_whose_zone_is_unknown_here_keeps_no_other_waiting(
    client: TurnClient, provider: FakeProvider, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    strange, ours = await every_second(client), await every_second(client)
    server.ask("HSET", client.turns.keys.schedule(strange.schedule_id), "timezone", "Mars/Base")
    place = await submit(client)
    shard = int(place.turn_id[:2])
    server.ask("ZADD", client.turns.keys.ready(shard), "XX", 0, place.turn_id)
    async with LocalWorker(client, provider) as worker:
        for _ in range(2):
            await worker.reaper.tick()
    assert server.ask("ZSCORE", client.turns.keys.ready(shard), place.turn_id) > time.time() * 1000
    assert (await client.schedules.get(ours.schedule_id)).last_fire is not None
    assert (await client.schedules.get(strange.schedule_id)).next_at == strange.next_at, "another may know it"
    assert caplog.text.count("work_not_looked_after") == 1
    for made in (strange, ours):
        await client.schedules.delete(made.schedule_id)
