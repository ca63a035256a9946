"""Taking a turn from its worker: a hand-back costs nothing, a crash counts, a poison turn ends."""

from __future__ import annotations

import pytest

from aiforge.core.events import Failed
from tests.support.servers import RedisServer
from tests.support.turns import DEAD, SUSPECT_AFTER, claim, crash, die, expire, intended, read, state, submit
from worker.contract.claims import Refused
from worker.contract.client import TurnClient
from worker.contract.places import Place
from worker.contract.schemas import TurnState

pytestmark = pytest.mark.anyio


async def test_a_hand_back_never_counts(client: TurnClient) -> None:
    place = await submit(client)
    for _ in range(5):
        running = await claim(client.turns, place)
        assert running.claim.attempt == 1
        assert not running.claim.suspect
        assert await running.hand_back() == "queued"
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.attempts) == (TurnState.QUEUED, 0)
    stats = await client.stats()
    assert (stats.ready, stats.running) == (1, 0)


async def test_a_repeated_hand_back_changes_nothing(client: TurnClient) -> None:
    place = await submit(client)
    running = await claim(client.turns, place)
    assert [await running.hand_back() for _ in range(3)] == ["queued", "refused", "refused"]
    assert (await client.turn(place.turn_id)).attempts == 0


async def test_a_lease_must_have_run_out(client: TurnClient) -> None:
    place = await submit(client)
    running = await claim(client.turns, place)
    assert await client.turns.requeue(place, None) == ("refused", None)
    assert await state(client, place) is TurnState.RUNNING
    assert (await running.answer("Hi")).accepted


async def test_a_queued_turn_cannot_be_requeued(client: TurnClient) -> None:
    place = await submit(client)
    assert await client.turns.requeue(place, None) == ("refused", None)
    assert await client.turns.requeue(place, 0) == ("refused", None)


async def test_a_lease_of_what_nobody_runs_is_forgotten(client: TurnClient, server: RedisServer) -> None:
    """Else the reaper would find it again at every tick."""
    place = await submit(client)
    leases = client.turns.keys.leases(int(place.turn_id[:2]))
    server.ask("ZADD", leases, 1, place.turn_id)
    assert await client.turns.requeue(place, None) == ("refused", None)
    assert server.ask("ZCARD", leases) == 0
    assert not (await claim(client.turns, place)).claim.suspect


async def test_a_turn_that_kills_its_process_is_dead_lettered(client: TurnClient) -> None:
    """Two crashes make it a suspect; when it dies alone, that is its end."""
    place = await submit(client, conversation_id="c")
    following = await submit(client, conversation_id="c")
    for _ in range(SUSPECT_AFTER):
        assert await crash(client.turns, await claim(client.turns, place)) == "queued"
    running = await claim(client.turns, place)
    assert running.claim.suspect
    await running.tokens("half an ans")
    assert await die(client.turns, running) == ("dead", following.turn_id)
    assert await die(client.turns, running) == ("refused", None)
    turn = await client.turn(place.turn_id)
    assert (turn.state, turn.attempts, turn.error) == (TurnState.FAILED, client.settings.max_attempts, DEAD)
    assert [event for _, event in await read(client, place)][-1] == Failed(DEAD.code, DEAD.message)
    assert [call.outcome for call in await client.turns.calls(place.turn_id)] == ["lost"] * 3
    assert await state(client, following) is TurnState.QUEUED
    await claim(client.turns, following)


async def test_the_dead_letters_hold_none_whose_turn_has_expired(
    client: TurnClient, server: RedisServer
) -> None:
    """Also where nobody ever lists them."""
    places = [await submit(client, conversation_id="c") for _ in range(3)]
    index = client.turns.keys.dead(int(places[0].turn_id[:2]))
    for place, left in zip(places, (1, 1, 2), strict=True):
        for _ in range(SUSPECT_AFTER):
            await crash(client.turns, await claim(client.turns, place))
        assert (await die(client.turns, await claim(client.turns, place)))[0] == "dead"
        assert server.ask("ZCARD", index) == left
        server.ask("ZADD", index, "XX", 1, places[0].turn_id)


async def test_a_suspect_whose_worker_dies_is_never_given_up(client: TurnClient) -> None:
    """Who killed the worker is not known: nothing but its own process's death is held against a turn."""
    place = await submit(client)
    for attempt in range(1, 10):
        running = await claim(client.turns, place)
        assert running.claim.suspect == (attempt > SUSPECT_AFTER)
        assert await crash(client.turns, running) == "queued"
    assert (await (await claim(client.turns, place)).answer("at last")).accepted


async def test_only_the_one_that_holds_a_turn_can_declare_it_dead(client: TurnClient) -> None:
    place = await submit(client)
    for _ in range(SUSPECT_AFTER):
        await crash(client.turns, await claim(client.turns, place))
    late = await claim(client.turns, place)
    await crash(client.turns, late)
    assert await die(client.turns, late) == ("refused", None)
    present = await claim(client.turns, place)
    assert await die(client.turns, late) == ("refused", None)
    assert (await present.answer("Hi")).accepted
    assert await die(client.turns, present) == ("refused", None)
    assert await state(client, place) is TurnState.COMPLETED


async def test_the_reaper_is_told_of_what_is_overdue(client: TurnClient, server: RedisServer) -> None:
    running, waiting = await submit(client), await submit(client)
    await claim(client.turns, running)
    shards = sorted({int(place.turn_id[:2]) for place in (running, waiting)})
    assert all(not found.expired and not found.due for found in await client.turns.reap(shards, "a"))
    await expire(client.turns, running.turn_id, int(running.turn_id[:2]))
    server.ask("ZADD", client.turns.keys.ready(int(waiting.turn_id[:2])), "XX", 0, waiting.turn_id)
    found = await client.turns.reap(shards, "a")
    assert [work for shard in found for work in shard.expired] == [running.turn_id]
    assert [work for shard in found for work in shard.due] == [waiting.turn_id]
    assert sum(shard.ready for shard in found) == 1


async def test_a_shard_has_one_reaper(client: TurnClient, server: RedisServer) -> None:
    places = [await submit(client) for _ in range(2)]
    for place in places:
        make_due(client, server, place)
    shards = sorted({int(place.turn_id[:2]) for place in places})
    turns = sorted(place.turn_id for place in places)
    found = await client.turns.reap(shards, "a")
    assert sorted(work for shard in found for work in shard.due) == turns
    for place in places:
        make_due(client, server, place)
    found = await client.turns.reap(shards, "b")
    assert [work for shard in found for work in shard.due] == []
    assert sum(shard.ready for shard in found) == len(places), "one queue serves all shards"
    found = await client.turns.reap(shards, "a")
    assert sorted(work for shard in found for work in shard.due) == turns
    assert 0 < server.ask("PTTL", client.turns.keys.reaper(shards[0])) <= 2_000


async def test_work_that_is_not_woken_is_due_again_soon(client: TurnClient, server: RedisServer) -> None:
    place = await submit(client)
    for _ in range(6):
        make_due(client, server, place)
        (found,) = await client.turns.reap([int(place.turn_id[:2])], "a")
        assert found.due == [place.turn_id]
        assert 0 < due_in(client, server, place) <= 1


async def test_wake_ups_are_repeated_ever_more_seldom(client: TurnClient, server: RedisServer) -> None:
    place = await submit(client)
    pauses = []
    for _ in range(7):
        await client.turns.woken([place.turn_id])
        pauses.append(due_in(client, server, place))
    assert [round(pause / 5) for pause in pauses] == [1, 2, 4, 8, 12, 12, 12]
    await claim(client.turns, place)
    await client.turns.woken([place.turn_id])
    shard = int(place.turn_id[:2])
    assert server.ask("EXISTS", client.turns.keys.wakes(shard), client.turns.keys.ready(shard)) == 0


def make_due(client: TurnClient, server: RedisServer, place: Place) -> None:
    server.ask("ZADD", client.turns.keys.ready(int(place.turn_id[:2])), "XX", 0, place.turn_id)


def due_in(client: TurnClient, server: RedisServer, place: Place) -> float:
    """Seconds until the reaper looks at a turn again."""
    seconds, microseconds = server.ask("TIME")
    due = float(server.ask("ZSCORE", client.turns.keys.ready(int(place.turn_id[:2])), place.turn_id))
    return due / 1000 - int(seconds) - int(microseconds) / 1e6


async def test_a_turn_that_ran_once_is_handed_on_with_its_waiting_place(client: TurnClient) -> None:
    """A crash keeps the conversation's order: nobody overtakes the turn that is tried again."""
    first, second = [await submit(client, conversation_id="c") for _ in range(2)]
    await crash(client.turns, await claim(client.turns, first))
    granted = await client.turns.claim(second, "w", intended("c"), "t")
    assert granted == Refused("refused", "waiting")
    assert (await (await claim(client.turns, first)).answer("1")).following == second.turn_id
