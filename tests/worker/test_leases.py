"""What a process holds: renewed together, stopped when it is lost, cancelled or to be handed back."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack

import pytest

from tests.support.servers import RedisServer
from tests.support.turns import Running, claim, crash, expire, submit
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.settings import ContractSettings
from worker.contract.store import TurnStore
from worker.upkeep.leases import Held, Leases

pytestmark = pytest.mark.anyio


async def running(client: TurnClient) -> Running:
    return await claim(client.turns, await submit(client))


def lease(server: RedisServer, client: TurnClient, turn: Running) -> float:
    """When it ends, in Unix milliseconds."""
    turn_id = turn.claim.place.turn_id
    return float(server.ask("ZSCORE", client.turns.keys.leases(int(turn_id[:2])), turn_id))


async def endless(held: Held) -> asyncio.Task[object]:
    """Work that ends only when it is stopped."""
    task: asyncio.Task[object] = asyncio.create_task(asyncio.Event().wait())
    held.follow(task)
    return task


async def ended(task: asyncio.Task[object]) -> bool:
    await asyncio.wait([task], timeout=5)
    return task.cancelled()


async def stopped(task: asyncio.Task[None]) -> None:
    """Cancel until it ends: redis-py's use of `wait_for` can swallow one cancellation on Python 3.11."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.1)


async def test_a_heartbeat_renews_everything_that_is_held(client: TurnClient, server: RedisServer) -> None:
    leases, turns = Leases(), [await running(client) for _ in range(5)]
    with leases.hold(turns[0].claim.place.turn_id, 1), leases.hold(turns[1].claim.place.turn_id, 1):
        assert len(leases) == 2
        for turn in turns:
            await expire(client.turns, turn.claim.place.turn_id, int(turn.claim.place.turn_id[:2]))
        await leases.renew(client.turns)
    assert [lease(server, client, turn) > 0 for turn in turns] == [True, True, False, False, False]
    assert len(leases) == 0


async def test_what_another_worker_was_given_is_stopped(client: TurnClient) -> None:
    leases, turn = Leases(), await running(client)
    with leases.hold(turn.claim.place.turn_id, turn.claim.fence) as held:
        task = await endless(held)
        await crash(client.turns, turn)
        await claim(client.turns, turn.claim.place)
        await leases.renew(client.turns)
        assert await ended(task)
        assert held.reason == "lost"


async def test_a_cancellation_whose_message_was_lost_is_found(client: TurnClient) -> None:
    leases, turn, other = Leases(), await running(client), await running(client)
    with (
        leases.hold(turn.claim.place.turn_id, turn.claim.fence) as held,
        leases.hold(other.claim.place.turn_id, other.claim.fence) as spared,
    ):
        task = await endless(held)
        await client.cancel(turn.claim.place.turn_id)
        await leases.renew(client.turns)
        assert await ended(task)
        assert (held.reason, spared.reason) == ("cancelled", None)


async def test_the_first_reason_counts() -> None:
    leases = Leases()
    with leases.hold("turn", 1) as held:
        task = await endless(held)
        leases.stop("turn", "cancelled")
        leases.stop_all("handed_back")
        leases.stop("another", "lost")
        assert await ended(task)
        assert held.reason == "cancelled"


async def test_a_stop_comes_from_any_thread() -> None:
    leases = Leases()
    with leases.hold("turn", 1) as held:
        task = await endless(held)
        thread = threading.Thread(target=leases.stop, args=("turn", "cancelled"))
        thread.start()
        assert await ended(task)
        thread.join()


async def test_what_was_stopped_before_it_began_does_not_begin() -> None:
    leases = Leases()
    with leases.hold("turn", 1) as held:
        leases.stop("turn", "cancelled")
        await eventually(lambda: held.reason)
        assert await ended(await endless(held))


async def test_after_the_end_nothing_new_is_held() -> None:
    leases = Leases()
    leases.stop_all("handed_back")
    with leases.hold("late", 1) as held:
        assert held.reason == "handed_back"


async def test_letting_go_waits_for_what_still_ends() -> None:
    leases = Leases()
    with leases.hold("turn", 1):
        await leases.let_go(0.05)
        assert len(leases) == 1
        letting = asyncio.create_task(leases.let_go(5))
    await letting
    assert len(leases) == 0


async def test_a_newer_claim_of_the_same_turn_stays_held() -> None:
    leases, older = Leases(), ExitStack()
    older.enter_context(leases.hold("turn", 1))
    with leases.hold("turn", 2) as newer:
        older.close()
        leases.stop("turn", "cancelled")
        await eventually(lambda: newer.reason)
    assert len(leases) == 0


async def test_heartbeats_go_on_after_an_outage(namespace: str) -> None:
    with RedisServer() as own:
        settings = ContractSettings(redis_url=own.url, namespace=namespace, lease_seconds=60)
        async with await TurnClient.connect(settings) as client:
            leases, turn = Leases(), await running(client)
            with leases.hold(turn.claim.place.turn_id, turn.claim.fence) as held:
                beating = asyncio.create_task(leases.keep(client.turns, 0.02))
                own.kill()
                await asyncio.sleep(0)
                await asyncio.to_thread(own.start)
                before = lease(own, client, turn)
                await eventually(lambda: lease(own, client, turn) > before)
                assert held.reason is None
                await stopped(beating)


async def test_what_was_claimed_anew_during_a_heartbeat_goes_on(client: TurnClient) -> None:
    first = await running(client)
    place, leases = first.claim.place, Leases()
    await crash(client.turns, first)
    second = await claim(client.turns, place)
    with ExitStack() as before, ExitStack() as after:
        before.enter_context(leases.hold(place.turn_id, first.claim.fence))
        found: list[Held] = []

        class Slow(TurnStore):
            async def heartbeat(self, held: dict[str, int]) -> list[str]:
                lost = await super().heartbeat(held)
                before.close()
                found.append(after.enter_context(leases.hold(place.turn_id, second.claim.fence)))
                return lost

        await leases.renew(Slow(client.connection, client.settings))
        await leases.renew(client.turns)
        assert [held.reason for held in found] == [None]
