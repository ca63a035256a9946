"""The reaper: takes what nobody works on, wakes what nobody was told of, and never makes a storm."""

from __future__ import annotations

import asyncio
import time
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from aiforge.core.tokens import LONGEST_ANSWER, USUAL_ANSWER
from aiforge.core.types import Usage
from aiforge.testing import FakeProvider
from tests.support.runners import LocalWorker, library
from tests.support.servers import RedisServer
from tests.support.slices import Sliced, take
from tests.support.turns import Connect, claim, expire, intended, state, submit
from tests.support.waiting import eventually
from worker.calls.purse import Purses
from worker.contract.calls.budget_limits import limit
from worker.contract.calls.budgets import Budget, BudgetStore
from worker.contract.client import TurnClient
from worker.contract.ids import SHARDS, shard_of_id
from worker.contract.queues import queue
from worker.contract.schemas import BatchItem, BatchRequest, BatchState, Lane, TurnState
from worker.contract.settings import ContractSettings

pytestmark = pytest.mark.anyio


async def depth(client: TurnClient, lane: Lane = Lane.CHAT) -> int:
    return (await client.stats()).depth[lane]


async def deep(client: TurnClient, expected: int, lane: Lane = Lane.CHAT) -> bool:
    return await depth(client, lane) == expected


def lose_wake_ups(server: RedisServer, namespace: str) -> None:
    for lane in Lane:
        server.ask("DEL", f"{namespace}:broker:{queue(namespace, lane)}")


def make_due(server: RedisServer, client: TurnClient, work: str) -> None:
    """As if its wake-up had been sent long ago."""
    shard = int(work.removeprefix("batch_")[:2])
    server.ask("ZADD", client.turns.keys.ready(shard), "XX", 0, work)


async def test_a_turn_whose_worker_died_is_woken(
    client: TurnClient, provider: FakeProvider, server: RedisServer, namespace: str
) -> None:
    place = await submit(client)
    await eventually(lambda: depth(client))
    lose_wake_ups(server, namespace)
    await claim(client.turns, place)
    async with LocalWorker(client, provider) as worker:
        await worker.reaper.tick()
        assert await state(client, place) is TurnState.RUNNING
        await expire(client.turns, place.turn_id, int(place.turn_id[:2]))
        await worker.reaper.tick()
        assert await state(client, place) is TurnState.QUEUED
        await eventually(lambda: deep(client, 1))
        await worker.turns.run(place.turn_id)
    assert (await client.turn(place.turn_id)).attempts == 2


async def test_lost_wake_ups_are_sent_again_and_no_more_than_those(
    client: TurnClient, provider: FakeProvider, server: RedisServer, namespace: str
) -> None:
    places = [await submit(client) for _ in range(4)]
    await eventually(lambda: deep(client, 4))
    async with LocalWorker(client, provider) as worker:
        for place in places:
            make_due(server, client, place.turn_id)
        await worker.reaper.tick()
        assert await depth(client) == 4, "four turns are ready and four wake-ups wait"
        lose_wake_ups(server, namespace)
        for place in places:
            make_due(server, client, place.turn_id)
        await worker.reaper.tick()
        await eventually(lambda: deep(client, 4))
        lose_wake_ups(server, namespace)
        await worker.reaper.tick()
        assert await depth(client) == 0, "they are not due again yet"


async def test_what_was_woken_is_left_alone_ever_longer(
    client: TurnClient, provider: FakeProvider, server: RedisServer, namespace: str
) -> None:
    """Work that no worker takes, for whatever reason, makes no storm of wake-ups."""
    place = await submit(client)
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="a")]))
    async with LocalWorker(client, provider) as worker:
        for seconds in (5, 10, 20):
            lose_wake_ups(server, namespace)
            for work in (place.turn_id, batch.batch_id):
                make_due(server, client, work)
            await worker.reaper.tick()
            now = int(server.ask("TIME")[0])
            for work in (place.turn_id, batch.batch_id):
                due = float(server.ask("ZSCORE", client.turns.keys.ready(shard_of_id(work)), work)) / 1000
                assert seconds - 3 < due - now <= seconds + 1
            await eventually(lambda: deep(client, 1))


async def test_a_lost_wake_up_is_found_beside_those_of_shards_that_others_look_after(
    client: TurnClient, provider: FakeProvider, server: RedisServer, namespace: str
) -> None:
    """One queue serves all shards, so what waits there is compared with all that is ready."""
    lost = await submit(client)
    await eventually(lambda: deep(client, 1))
    lose_wake_ups(server, namespace)
    for _ in range(3):
        await submit(client)
    await eventually(lambda: deep(client, 3))
    locks = [client.turns.keys.reaper(shard) for shard in set(range(SHARDS)) - {int(lost.turn_id[:2])}]
    for lock in locks:
        server.ask("SET", lock, "another", "PX", 60_000)
    async with LocalWorker(client, provider) as worker:
        make_due(server, client, lost.turn_id)
        await worker.reaper.tick()
        await eventually(lambda: deep(client, 4))
    server.ask("DEL", *locks)


async def test_what_a_full_queue_hides_is_looked_for_again_soon(
    client: TurnClient, provider: FakeProvider, server: RedisServer, namespace: str
) -> None:
    lost = await submit(client)
    await eventually(lambda: deep(client, 1))
    async with LocalWorker(client, provider) as worker:
        for _ in range(5):
            make_due(server, client, lost.turn_id)
            await worker.reaper.tick()
        assert await depth(client) == 1
        lose_wake_ups(server, namespace)
        await eventually(lambda: found(worker, client))


async def found(worker: LocalWorker, client: TurnClient) -> bool:
    await worker.reaper.tick()
    return await depth(client) == 1


async def test_a_slice_whose_worker_died_is_done_again(
    client: TurnClient, provider: FakeProvider, server: RedisServer, namespace: str
) -> None:
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="a"), BatchItem(message="b")]))
    taken = await take(client.batches, batch.batch_id)
    assert isinstance(taken, Sliced)
    await eventually(lambda: deep(client, 2, Lane.BATCH))
    lose_wake_ups(server, namespace)
    async with LocalWorker(client, provider) as worker:
        await expire(client.turns, taken.taken.work, int(batch.batch_id.removeprefix("batch_")[:2]))
        await worker.reaper.tick()
        await eventually(lambda: deep(client, 1, Lane.BATCH))
        for _ in range(2):
            await worker.slices.run(batch.batch_id)
    assert (await client.batch(batch.batch_id)).completed == 2


async def test_what_the_dead_had_reserved_counts_with_what_is_usual(
    connect: Connect, provider: FakeProvider
) -> None:
    """It does not stand in the way of others until somebody gives it up for spent."""
    limits = {"max_tokens": Decimal(10**6)}
    client = await connect(budgets={"conversation": limits, "batch": limits})
    budgets = BudgetStore(client.connection, client.settings)
    most = Usage(10, LONGEST_ANSWER)
    running = await claim(client.turns, await submit(client, conversation_id="c"))
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="a")]))
    taken = await take(client.batches, batch.batch_id)
    assert isinstance(taken, Sliced)
    async with LocalWorker(client, provider) as worker:
        purses = Purses(client.connection, client.settings, library(provider))
        for scope, purse, call_id, work in (
            ("conversation:c", purses.of_turn("default", "c"), running.call_id, running.claim.place.turn_id),
            (
                f"batch:{batch.batch_id}",
                purses.of_batch("default", batch.batch_id),
                taken.call_id(0),
                taken.taken.work,
            ),
        ):
            assert purse is not None
            call = msgspec.structs.replace(intended(call_id), model="gpt-4o-mini")
            await purse.reserve(call, lambda: most)
            budget = Budget(scope, limit("max_tokens", Decimal(1)))
            assert await budgets.used("default", budget) == 0
            await expire(client.turns, work, shard_of_id(work))
            await worker.reaper.tick()
            assert await budgets.used("default", budget) == 10 + USUAL_ANSWER


async def test_a_batch_that_nobody_was_told_of_is_woken(
    client: TurnClient, provider: FakeProvider, server: RedisServer, namespace: str
) -> None:
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="a")] * 3))
    await eventually(lambda: deep(client, 3, Lane.BATCH))
    async with LocalWorker(client, provider) as worker:
        make_due(server, client, batch.batch_id)
        await worker.reaper.tick()
        assert await depth(client, Lane.BATCH) == 3
        lose_wake_ups(server, namespace)
        make_due(server, client, batch.batch_id)
        await worker.reaper.tick()
        await eventually(lambda: deep(client, 3, Lane.BATCH))


async def test_one_of_two_reapers_works(client: TurnClient, provider: FakeProvider) -> None:
    place = await submit(client)
    await claim(client.turns, place)
    async with LocalWorker(client, provider) as worker, LocalWorker(client, provider, name="other") as other:
        await worker.reaper.tick()
        await expire(client.turns, place.turn_id, int(place.turn_id[:2]))
        await other.reaper.tick()
        assert await state(client, place) is TurnState.RUNNING
        await worker.reaper.tick()
        assert await state(client, place) is TurnState.QUEUED


async def test_an_outage_ends_no_reaper(provider: FakeProvider, namespace: str) -> None:
    """It watches on, and finds what was lost meanwhile."""
    with RedisServer() as own:
        settings = ContractSettings(redis_url=own.url, namespace=namespace)
        async with await TurnClient.connect(settings) as client, LocalWorker(client, provider) as worker:
            place = await submit(client)
            await eventually(lambda: deep(client, 1))
            own.kill()
            watching = asyncio.create_task(worker.reaper.watch(lambda: worker.draining))
            await asyncio.to_thread(own.start)
            await claim(client.turns, place)
            await expire(client.turns, place.turn_id, int(place.turn_id[:2]))
            await eventually(lambda: requeued(client, place.turn_id))
            worker.draining = True
            await watching


async def requeued(client: TurnClient, turn_id: str) -> bool:
    return (await client.turn(turn_id)).state is TurnState.QUEUED


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_a_file_that_cannot_be_deleted_holds_nobody_up(
    connect: Connect, tmp_path: Path, client: TurnClient, provider: FakeProvider, server: RedisServer
) -> None:
    """Its bytes are where this worker has no way to: it is tried again later, and all else goes on."""
    elsewhere = (await connect(files_url=tmp_path.as_uri())).files
    upload = await elsewhere.begin("default", "f", "batch", ttl_seconds=0.01)
    await upload.write(b"x")
    file = await upload.seal()
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="q")], completion_window="1s"))

    async with LocalWorker(client, provider) as worker:

        async def expired() -> bool:
            await worker.reaper.tick()
            return (await client.batch(batch.batch_id)).state is BatchState.EXPIRED

        await eventually(expired)
        assert (await elsewhere.get(file.file_id, "default")) == file
        due = server.ask("ZSCORE", elsewhere.keys.due(int(file.file_id[5:7])), file.file_id)
        assert float(due) / 1000 > time.time() + 30
    async with LocalWorker(await connect(files_url=tmp_path.as_uri()), provider) as worker:
        server.ask("ZADD", elsewhere.keys.due(int(file.file_id[5:7])), 1, file.file_id)

        async def gone() -> bool:
            await worker.reaper.tick()
            return not await elsewhere.page("default")

        await eventually(gone)
    assert files_below(tmp_path) == []
