"""Schedules in Redis: made once, taken on by one of many, kept with their conversation and gone with it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
from redis.crc import key_slot

from tests.support.servers import RedisServer
from tests.support.turns import Connect, answered, claim
from worker.contract.client import TurnClient
from worker.contract.errors import Conflict, Gone, InvalidInput, NotFound
from worker.contract.ids import SHARDS, schedule_id_of, shard_of, shard_of_id
from worker.contract.keys import Keys
from worker.contract.places import Place
from worker.contract.schedule.schedules import fire_key
from worker.contract.schedule.schemas import (
    MOST_OF_A_CONVERSATION,
    Fire,
    Schedule,
    ScheduleChange,
    ScheduleRequest,
)
from worker.contract.schemas import BatchItem, BatchRequest, Caller, ConversationSettings, TurnRequest
from worker.contract.server.link import Argument

pytestmark = pytest.mark.anyio
MARK = "a-marked-text-that-must-go"
DAY = 86_400


def turns(cron: str = "0 9 * * *", **more: Any) -> ScheduleRequest:
    return ScheduleRequest(**{"cron": cron, "turn": TurnRequest(message=MARK), **more})


async def overdue(client: TurnClient, **more: Any) -> Schedule:
    """A schedule of every minute whose first tick has passed long ago."""
    return await client.schedules.open(turns("* * * * *", starts_at=time.time() - 3_600, **more))


async def listed(client: TurnClient, **options: Any) -> list[str]:
    return [found.schedule_id for _, found in await client.schedules.page(**options)]


@pytest.mark.parametrize("conversation", ["c", None])
def test_every_key_of_a_schedule_has_one_slot(conversation: str | None) -> None:
    keys = Keys("test-keys")
    names = keys.of_schedule(schedule_id_of("default", conversation, "ab" * 10), "default", conversation)
    assert len(set(names)) == (10 if conversation else 4)
    assert len({key_slot(name.encode()) for name in names}) == 1
    assert len({key_slot(name.encode()) for name in keys.of_erasure("default", "c")}) == 1


async def test_a_schedule_is_made_and_read_back(client: TurnClient) -> None:
    request = turns(conversation_id="c", timezone="Europe/Berlin", metadata={"a": "b"})
    made = await client.schedules.open(request)
    assert shard_of_id(made.schedule_id) == shard_of("default", "c")
    assert made.schedule_id.startswith("sched_")
    assert (made.turn, made.batch, made.kind) == (request.turn, None, "turn")
    assert (made.paused, made.last_fire, made.catch_up, made.metadata) == (False, None, "last", {"a": "b"})
    assert made.next_at is not None
    assert 0 < made.next_at - time.time() <= DAY + 3_600
    assert await client.schedules.get(made.schedule_id) == made
    assert (await client.conversation("c")).messages == 0


async def test_the_first_tick_lies_at_or_behind_the_start(client: TurnClient) -> None:
    start = (time.time() // 60 + 100) * 60
    for offset, first in ((0, start), (0.5, start + 60), (-0.5, start)):
        made = await client.schedules.open(turns("* * * * *", starts_at=start + offset))
        assert made.next_at == first


async def test_a_schedule_belongs_to_its_tenant(client: TurnClient) -> None:
    made = await client.of(Caller("a")).schedules.open(turns())
    for attempt in (
        client.of(Caller("b")).schedules.get(made.schedule_id),
        client.of(Caller("b")).schedules.delete(made.schedule_id),
        client.of(Caller("b")).schedules.change(made.schedule_id, ScheduleChange(paused=True)),
        client.schedules.get("sched_99" + "0" * 20),
        client.schedules.get("../x"),
    ):
        with pytest.raises(NotFound):
            await attempt
    assert await listed(client.of(Caller("b"))) == []
    assert await listed(client.of(Caller("a"))) == [made.schedule_id]


async def test_under_a_key_it_is_made_once(client: TurnClient) -> None:
    first = await client.schedules.open(turns(conversation_id="c"), idempotency_key="k")
    again = await client.schedules.open(turns(conversation_id="c"), idempotency_key="k")
    assert again == msgspec.structs.replace(first, replayed=True)
    with pytest.raises(Conflict, match="another body"):
        await client.schedules.open(turns("1 9 * * *", conversation_id="c"), idempotency_key="k")
    other = await client.schedules.open(turns(conversation_id="d"), idempotency_key="k")
    assert other.schedule_id != first.schedule_id
    await client.schedules.delete(first.schedule_id)
    with pytest.raises(Gone):
        await client.schedules.open(turns(conversation_id="c"), idempotency_key="k")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"turn": None}, "turn"),
        ({"batch": BatchRequest(items=[BatchItem(message="x")])}, "turn"),
        ({"cron": "0 25 * * *"}, "cron"),
        ({"timezone": "Mars/Base"}, "timezone"),
        ({"conversation_id": "a b"}, "conversation_id"),
        ({"turn": None, "batch": BatchRequest(items=[]), "conversation_id": "c"}, "conversation_id"),
        ({"turn": TurnRequest(message="x", run_after=5)}, "turn.run_after"),
        ({"turn": TurnRequest(message="")}, "turn.message"),
        ({"turn": TurnRequest(message="x", tools=["nonsense"])}, "turn.tools"),
        ({"turn": None, "batch": BatchRequest(items=[BatchItem(message="")])}, "batch.items[0].message"),
        ({"starts_at": 5.0}, "starts_at"),
        ({"starts_at": float("nan")}, "starts_at"),
        ({"ends_at": float("inf")}, "ends_at"),
        ({"starts_at": time.time() + 60, "ends_at": time.time() + 30}, "ends_at"),
        ({"cron": "0 0 1 1 *", "ends_at": time.time() + 1}, "ends_at"),
        ({"cron": "0 0 29 2 MON#5", "paused": True}, None),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_made(
    client: TurnClient, fields: dict[str, Any], param: str | None
) -> None:
    if param is None:
        await client.schedules.open(turns(**fields))
        return
    with pytest.raises(InvalidInput) as refused:
        await client.schedules.open(turns(**fields))
    assert refused.value.param == param
    assert await listed(client) == []


async def test_a_conversation_has_so_many_and_no_more(client: TurnClient) -> None:
    for _ in range(MOST_OF_A_CONVERSATION):
        await client.schedules.open(turns(conversation_id="c", paused=True))
    with pytest.raises(Conflict) as refused:
        await client.schedules.open(turns(conversation_id="c"))
    assert refused.value.code == "too_many_schedules"


async def test_pages_join_and_leave_templates_out(client: TurnClient) -> None:
    made = [(await client.schedules.open(turns(conversation_id=f"c{n % 2}"))).schedule_id for n in range(5)]
    seen: list[str] = []
    before = None
    while page := await client.schedules.page(before=before, limit=2):
        seen += [found.schedule_id for _, found in page]
        before = page[-1][0], page[-1][1].schedule_id
        assert [found.turn for _, found in page] == [None] * len(page)
    assert sorted(seen) == sorted(made)
    assert set(await listed(client, conversation_id="c1")) == {made[1], made[3]}
    await client.schedules.delete(made[1])
    assert await listed(client, conversation_id="c1") == [made[3]]


async def test_a_page_is_not_short_because_a_schedule_was_deleted_meanwhile(
    client: TurnClient, server: RedisServer
) -> None:
    made = {(await client.schedules.open(turns())).schedule_id for _ in range(5)}
    newest, *_ = await listed(client)
    server.ask("DEL", client.schedules.keys.schedule(newest))
    assert len(await listed(client, limit=3)) == 3
    assert set(await listed(client, limit=5)) == made - {newest}


async def test_a_pause_leaves_ticks_out_and_a_new_expression_holds_at_once(client: TurnClient) -> None:
    schedules, made = client.schedules, await overdue(client, catch_up="all")
    assert await schedules.owed(made.schedule_id) is not None
    paused = await schedules.change(made.schedule_id, ScheduleChange(paused=True))
    assert (paused.paused, paused.next_at) == (True, None)
    assert await schedules.owed(made.schedule_id) is None
    resumed = await schedules.change(made.schedule_id, ScheduleChange(paused=False))
    assert resumed.next_at is not None
    assert 0 < resumed.next_at - time.time() <= 60
    moved = await schedules.change(made.schedule_id, ScheduleChange(cron="0 0 1 1 *", timezone="Asia/Tokyo"))
    assert (moved.cron, moved.timezone) == ("0 0 1 1 *", "Asia/Tokyo")
    assert moved.next_at is not None
    assert (moved.next_at + 9 * 3_600) % DAY == 0
    assert await schedules.change(made.schedule_id, ScheduleChange(cron="0 0 1 1 *")) == moved
    for change in (ScheduleChange(), ScheduleChange(cron=""), ScheduleChange(timezone="x")):
        with pytest.raises(InvalidInput):
            await schedules.change(made.schedule_id, change)


async def test_changes_at_once_all_hold(client: TurnClient) -> None:
    made = await client.schedules.open(turns())
    changes = [
        ScheduleChange(cron="5 5 * * *"),
        ScheduleChange(timezone="Asia/Tokyo"),
        ScheduleChange(paused=True),
    ]
    await asyncio.gather(*(client.schedules.change(made.schedule_id, change) for change in changes))
    found = await client.schedules.get(made.schedule_id)
    assert (found.cron, found.timezone, found.paused, found.next_at) == (
        "5 5 * * *",
        "Asia/Tokyo",
        True,
        None,
    )


async def test_a_change_that_was_overtaken_changes_nothing(client: TurnClient) -> None:
    """Whoever read the schedule before another changed it would undo that one's change."""
    made = await client.schedules.open(turns())
    changed = await client.schedules.change(made.schedule_id, ScheduleChange(cron="5 5 * * *"))
    keys = client.schedules.keys.of_schedule(made.schedule_id, "default", None)
    stale: list[Argument] = [made.schedule_id, 1, made.cron, "Asia/Tokyo", 0, DAY * 1000, ""]
    assert await client.connection.run("schedule_change", keys, stale) == 0
    assert await client.schedules.get(made.schedule_id) == changed
    await client.schedules.delete(made.schedule_id)
    assert await client.connection.run("schedule_change", keys, stale) == 0


async def test_only_what_is_due_is_found_by_the_reaper(client: TurnClient, server: RedisServer) -> None:
    made = await overdue(client)
    await client.schedules.open(turns())
    found = await client.turns.reap(range(SHARDS), "reaper")
    assert [name for shard in found for name in shard.schedules] == [made.schedule_id]
    for shard in range(SHARDS):
        server.ask("DEL", client.turns.keys.reaper(shard))


async def test_one_of_many_takes_a_schedule_on(client: TurnClient) -> None:
    schedules, made = client.schedules, await overdue(client)
    owed = await schedules.owed(made.schedule_id)
    assert owed is not None
    assert (owed.expected, owed.caller.tenant) == (made.next_at, "default")
    fire = Fire(tick=owed.expected, turn_id="the-turn")
    tries = [schedules.advance(owed, owed.expected, owed.expected + 60, fire) for _ in range(8)]
    assert sorted(await asyncio.gather(*tries)) == [False] * 7 + [True]
    found = await schedules.get(made.schedule_id)
    assert (found.next_at, found.last_fire) == (owed.expected + 60, fire)


async def test_what_a_late_worker_knows_replaces_nothing(client: TurnClient) -> None:
    schedules, made = client.schedules, await overdue(client)
    late = await schedules.owed(made.schedule_id)
    assert late is not None
    tick = late.expected
    newer = Fire(tick=tick + 60, turn_id="newer")
    assert await schedules.advance(late, tick, tick + 60, Fire(tick=tick, turn_id="older"))
    assert await schedules.advance(late, tick + 60, tick + 120, newer)
    assert not await schedules.advance(late, tick, tick + 60, Fire(tick=tick, turn_id="late"))
    found = await schedules.get(made.schedule_id)
    assert (found.next_at, found.last_fire) == (tick + 120, newer)
    await schedules.delete(made.schedule_id)
    assert not await schedules.advance(late, tick + 120, tick + 180, newer)
    assert await listed(client) == []


async def test_a_repeated_step_is_the_same_step(client: TurnClient, server: RedisServer) -> None:
    """As after a lost reply: the very same call is made again."""
    made = await overdue(client)
    keys = client.schedules.keys.of_schedule(made.schedule_id, "default", None)
    assert made.next_at is not None
    step: list[Argument] = [made.schedule_id, made.next_at * 1000, "", "", "token", "", ""]
    for _ in range(2):
        assert await client.connection.run("schedule_advance", keys, step) == 1
    found = await client.schedules.get(made.schedule_id)
    assert (found.next_at, found.last_fire) == (None, None)
    assert server.ask("ZCARD", client.schedules.keys.crons(shard_of_id(made.schedule_id))) == 0


async def test_a_newer_version_is_left_alone(client: TurnClient, server: RedisServer) -> None:
    for field in ("version", "template_version"):
        made = await overdue(client)
        server.ask(
            "HSET", client.schedules.keys.schedule(made.schedule_id), field, 99, "template", '{"new":1}'
        )
        assert await client.schedules.owed(made.schedule_id) is None
        with pytest.raises(Conflict, match="newer"):
            await client.schedules.change(made.schedule_id, ScheduleChange(paused=True))
        found = await client.schedules.get(made.schedule_id)
        assert (found.turn, found.next_at) == (None, made.next_at)
        await client.schedules.delete(made.schedule_id)


async def test_nothing_of_a_schedule_survives_its_conversation(
    client: TurnClient, server: RedisServer
) -> None:
    """Not even where it is just about to fire: its worker knows the text, and meets a tombstone."""
    made = await overdue(client, conversation_id="c")
    await client.schedules.open(turns(conversation_id="c"))
    stays = await client.schedules.open(turns())
    owed = await client.schedules.owed(made.schedule_id)
    assert owed is not None
    receipt = await client.erase("c")
    assert (receipt.schedules, receipt.turns) == (2, 0)
    with pytest.raises(Gone):
        await client.submit(
            TurnRequest(message=MARK),
            conversation_id="c",
            idempotency_key=fire_key(made.schedule_id, owed.expected),
        )
    assert not await client.schedules.advance(owed, owed.expected, owed.expected + 60, None)
    assert await listed(client) == [stays.schedule_id]
    await client.schedules.delete(stays.schedule_id)
    assert hits(server, client) == []


async def test_a_schedule_goes_with_a_conversation_that_has_expired(
    client: TurnClient, server: RedisServer
) -> None:
    made = await overdue(client, conversation_id="c")
    server.ask("DEL", client.turns.keys.conversation("default", "c"))
    assert (await client.erase("c")).schedules == 1
    with pytest.raises(NotFound):
        await client.schedules.get(made.schedule_id)
    with pytest.raises(NotFound):
        await client.erase("c")
    assert hits(server, client) == []


async def test_a_deleted_schedule_does_not_fire_either(client: TurnClient, server: RedisServer) -> None:
    made = await overdue(client, conversation_id="c")
    owed = await client.schedules.owed(made.schedule_id)
    assert owed is not None
    await client.schedules.delete(made.schedule_id)
    with pytest.raises(Gone):
        await client.submit(
            TurnRequest(message=MARK),
            conversation_id="c",
            idempotency_key=fire_key(made.schedule_id, owed.expected),
        )
    assert hits(server, client) == []


async def test_a_conversation_lives_until_its_schedule_fires_and_its_own_time_more(
    connect: Connect, server: RedisServer
) -> None:
    client = await connect(conversation_ttl_seconds=100)

    def left(conversation: str = "c") -> int:
        """Seconds, rounded to ten."""
        name = client.turns.keys.conversation("default", conversation)
        return round(int(server.ask("PTTL", name)) / 10_000) * 10

    in_a_day = time.time() + DAY
    await client.create_conversation(ConversationSettings(ttl=1_000), conversation_id="c")
    assert left() == 1_000
    made = await client.schedules.open(turns("* * * * * *", starts_at=in_a_day, conversation_id="c"))
    assert left() == pytest.approx(DAY + 1_000, abs=10)
    await answered(client, "Hello?", "Yes.", conversation_id="c")
    assert left() == pytest.approx(DAY + 1_000, abs=10), "the end of a turn does not make it shorter"
    messages = client.turns.keys.messages("default", "c")
    assert server.ask("PTTL", messages) > DAY * 1000
    await client.schedules.change(made.schedule_id, ScheduleChange(paused=True))
    assert left() == 1_000, "a paused one keeps nothing"
    await client.schedules.change(made.schedule_id, ScheduleChange(paused=False))
    assert left() == pytest.approx(DAY + 1_000, abs=10)
    await client.schedules.delete(made.schedule_id)
    assert left() == 1_000
    await client.schedules.open(turns("* * * * * *", starts_at=in_a_day, conversation_id="new"))
    assert left("new") == pytest.approx(DAY + 100, abs=10), "one that is begun by a schedule"


async def test_a_batch_under_its_own_id_is_stored_once(client: TurnClient) -> None:
    request = BatchRequest(items=[BatchItem(message=str(number)) for number in range(3)])
    batch_id = "batch_07" + "ab" * 10
    tries = [client.submit_batch(request, batch_id=batch_id) for _ in range(3)]
    assert {batch.batch_id for batch in await asyncio.gather(*tries)} == {batch_id}
    found = await client.batch(batch_id)
    assert (found.total, found.completed) == (3, 0)
    await client.cancel_batch(batch_id)


async def test_a_turn_that_a_tick_has_posted_is_found_again(client: TurnClient) -> None:
    made = await overdue(client, conversation_id="c")
    assert made.next_at is not None
    key = fire_key(made.schedule_id, made.next_at)
    first, again = [
        await client.submit(TurnRequest(message=MARK), conversation_id="c", idempotency_key=key)
        for _ in range(2)
    ]
    assert (again.turn_id, again.replayed) == (first.turn_id, True)
    await (await claim(client.turns, Place(first.turn_id, "default", "c"))).answer("done")


def hits(server: RedisServer, client: TurnClient) -> list[str]:
    """Every key of the test that holds the marked text."""
    found = []
    for name in server.ask("KEYS", f"*{client.settings.namespace}:*"):
        kind = server.ask("TYPE", name).decode()
        read = {
            "hash": ("HGETALL", name), "list": ("LRANGE", name, 0, -1), "zset": ("ZRANGE", name, 0, -1),
            "string": ("GET", name),
        }[kind]  # fmt: skip
        if MARK.encode() in str(server.ask(*read)).encode():
            found.append(name.decode())
    return found
