"""Schedules that fire: one turn or batch for each tick, whoever fires it and however often."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aiforge.testing import FakeProvider
from tests.support.runners import LocalWorker
from tests.support.servers import RedisServer
from tests.support.turns import Connect, paid, submit
from tests.support.waiting import eventually
from worker import metrics
from worker.contract.calls.budgets import BudgetStore, Need, Rules
from worker.contract.client import TurnClient
from worker.contract.errors import InvalidInput, Unavailable
from worker.contract.schedule.schedules import fire_key
from worker.contract.schedule.schemas import Schedule, ScheduleChange, ScheduleRequest
from worker.contract.schedule.ticks import CatchUp
from worker.contract.schemas import BatchItem, BatchRequest, Lane, Turn, TurnRequest, TurnState
from worker.upkeep.schedules import TOGETHER, Schedules

pytestmark = pytest.mark.anyio
HOUR = 3_600


def fires(outcome: str) -> float:
    return metrics.REGISTRY.get_sample_value("aiforge_schedule_fires_total", {"outcome": outcome}) or 0.0


async def overdue(client: TurnClient, **more: Any) -> Schedule:
    """A schedule of three minutes, of which the last one is this."""
    start = time.time() // 60 * 60 - 120
    times = {"starts_at": start, "ends_at": start + 120}
    template = {} if "batch" in more else {"turn": TurnRequest(message="Any news?")}
    return await client.schedules.open(
        ScheduleRequest(**{"cron": "* * * * *", "catch_up": "all", **times, **template, **more})
    )


async def posted(client: TurnClient, made: Schedule, count: int = 3) -> list[Turn]:
    """The turns of the first ticks."""
    assert made.next_at is not None
    return [
        await client.keyed(
            fire_key(made.schedule_id, made.next_at + 60 * number), conversation_id=made.conversation_id
        )
        for number in range(count)
    ]


async def test_every_missed_tick_is_a_turn_of_its_conversation(
    client: TurnClient, provider: FakeProvider
) -> None:
    made = await overdue(client, conversation_id="c", metadata={"a": "b"})
    before = fires("posted")
    async with LocalWorker(client, provider) as worker:
        for _ in range(3):
            await worker.reaper.tick()
        line = await client.line("c")
        turns = await posted(client, made)
        assert [line.active, *line.waiting] == [turn.turn_id for turn in turns]
        await eventually(lambda: woken(client))
        provider.push("one", "two", "three")
        await worker.turns.run(turns[0].turn_id)
    assert [(await client.turn(turn.turn_id)).answer for turn in turns] == ["one", "two", "three"]
    assert fires("posted") - before == 3
    found = await client.schedules.get(made.schedule_id)
    assert found.last_fire is not None
    assert (found.last_fire.turn_id, found.next_at) == (turns[-1].turn_id, None)


async def woken(client: TurnClient) -> bool:
    return (await client.stats()).depth[Lane.CHAT] > 0


@pytest.mark.parametrize(("catch_up", "expected"), [("last", 1), ("all", 61)])
async def test_missed_ticks_are_caught_up_with_as_asked(
    client: TurnClient, catch_up: CatchUp, expected: int
) -> None:
    start = time.time() // 60 * 60 - HOUR
    made = await overdue(client, conversation_id="c", starts_at=start, catch_up=catch_up)
    await Schedules(client).fire([made.schedule_id])
    line = await client.line("c")
    assert len([line.active, *line.waiting]) == expected


async def test_what_is_missed_may_be_left_out(client: TurnClient) -> None:
    skipping = await overdue(
        client,
        conversation_id="c",
        cron=_an_hour_ago(),
        starts_at=time.time() - 86_400,
        ends_at=None,
        catch_up="skip",
    )
    await Schedules(client).fire([skipping.schedule_id])
    found = await client.schedules.get(skipping.schedule_id)
    assert (found.last_fire, (await client.line("c")).active) == (None, None)
    assert found.next_at is not None
    assert found.next_at > time.time()


def _an_hour_ago() -> str:
    then = time.gmtime(time.time() - HOUR)
    return f"{then.tm_min} {then.tm_hour} * * *"


async def test_each_turn_begins_a_conversation_of_its_own(client: TurnClient) -> None:
    made = await overdue(client)
    await Schedules(client).fire([made.schedule_id])
    turns = await posted(client, made)
    assert len({turn.conversation_id for turn in turns}) == 3
    assert {turn.state for turn in turns} == {TurnState.QUEUED}


async def test_many_at_once_fire_once(client: TurnClient) -> None:
    """As eight workers would that all take themselves for the reaper."""
    made = await overdue(client, conversation_id="c")
    before = fires("posted")
    await asyncio.gather(*(Schedules(client).fire([made.schedule_id]) for _ in range(8)))
    await Schedules(client).fire([made.schedule_id])
    turns = await posted(client, made)
    line = await client.line("c")
    assert [line.active, *line.waiting] == [turn.turn_id for turn in turns]
    assert fires("posted") - before == 3


async def test_a_worker_that_dies_behind_its_turn_is_repeated_without_effect(client: TurnClient) -> None:
    made = await overdue(client, conversation_id="c")
    assert made.next_at is not None
    assert made.turn is not None
    died = await client.submit(
        made.turn, conversation_id="c", idempotency_key=fire_key(made.schedule_id, made.next_at)
    )
    await Schedules(client).fire([made.schedule_id])
    turns = await posted(client, made)
    line = await client.line("c")
    assert turns[0].turn_id == died.turn_id == line.active
    assert line.waiting == [turn.turn_id for turn in turns[1:]]


async def test_a_refused_fire_is_told_and_the_schedule_goes_on(client: TurnClient) -> None:
    await submit(client, conversation_id="c")
    made = await overdue(
        client, conversation_id="c", turn=TurnRequest(message="x", on_busy="reject"), ends_at=None
    )
    before = fires("refused")
    await Schedules(client).fire([made.schedule_id])
    found = await client.schedules.get(made.schedule_id)
    assert found.last_fire is not None
    assert found.last_fire.error is not None
    assert (found.last_fire.error.code, found.last_fire.turn_id) == ("conversation_busy", None)
    assert found.next_at is not None
    assert found.next_at > time.time() - 1
    assert fires("refused") - before == 3


@pytest.fixture
def till(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with monkeypatch.context() as patch:
        patch.setenv("AIFORGE_TOOLS", "tests.support.till:tools")
        yield patch


async def test_a_tool_that_is_gone_refuses_the_fire(connect: Connect, till: pytest.MonkeyPatch) -> None:
    shop = await connect()
    made = await overdue(shop, turn=TurnRequest(message="x", tools=["refund"]), catch_up="last")
    till.delenv("AIFORGE_TOOLS")
    await Schedules(await connect()).fire([made.schedule_id])
    found = await shop.schedules.get(made.schedule_id)
    assert found.last_fire is not None
    assert found.last_fire.error is not None
    assert found.last_fire.error.code == "invalid_value"
    assert "unknown tool 'refund'" in found.last_fire.error.message


class Away(TurnClient):
    """Its turns do not get through."""

    async def submit(self, *_: Any, **__: Any) -> Turn:
        raise Unavailable("nobody answers")


async def test_a_tick_that_could_not_be_posted_stays_due(client: TurnClient) -> None:
    made = await overdue(client)
    async with await Away.connect(client.settings) as away:
        with pytest.raises(Unavailable):
            await Schedules(away).fire([made.schedule_id])
    found = await client.schedules.get(made.schedule_id)
    assert (found.last_fire, found.next_at) == (None, made.next_at)


async def test_a_batch_is_posted_once_for_each_tick(client: TurnClient) -> None:
    batch = BatchRequest(items=[BatchItem(message="a"), BatchItem(message="b")])
    made = await overdue(client, batch=batch, catch_up="last")
    await asyncio.gather(*(Schedules(client).fire([made.schedule_id]) for _ in range(4)))
    found = await client.schedules.get(made.schedule_id)
    assert found.last_fire is not None
    assert found.last_fire.batch_id is not None
    assert (await client.batch(found.last_fire.batch_id)).total == 2
    ready = [await client.connection.command("ZCARD", client.turns.keys.ready(n)) for n in range(64)]
    assert sum(ready) == 1
    await client.cancel_batch(found.last_fire.batch_id)


Told = Callable[[], list[tuple[str, str, str | None]]]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """What has been logged since it was asked last: level, event and reason."""
    caplog.set_level(logging.INFO, "worker.upkeep.schedules")

    def telling() -> list[tuple[str, str, str | None]]:
        found = [
            (record.levelname, record.getMessage(), getattr(record, "reason", None))
            for record in caplog.records
        ]
        caplog.clear()
        return found

    return telling


async def test_a_budget_that_refuses_a_schedule_is_logged_when_it_begins_and_ends(
    connect: Connect, told: Told
) -> None:
    tight, wide = await connect(budgets={"tenant": {"max_requests": 1}}), await connect()
    await spend_all(tight)
    made = await overdue(
        wide, conversation_id="c", cron="* * * * * *", starts_at=time.time() - 3, ends_at=None
    )
    await fire_next(tight, made)
    assert told() == [("WARNING", "schedule_refused", "budget_exceeded")]
    await fire_next(tight, made)
    assert told() == []
    await fire_next(wide, made)
    assert told() == [("INFO", "schedule_taken_again", None)]
    await fire_next(wide, made)
    assert told() == []


async def spend_all(client: TurnClient) -> None:
    """Use the one call that a client's budgets allow."""
    budgets = BudgetStore(client.connection, client.settings)
    allowed = Rules(client.settings).of("default", conversation_id="c")
    assert await budgets.reserve("default", "call", allowed, Need(tokens=1, usd=None), seconds=60) is None
    await budgets.settle("default", [paid("call")])


async def fire_next(client: TurnClient, made: Schedule) -> None:
    """Wait for the next tick, and fire."""

    async def owes() -> bool:
        return await client.schedules.owed(made.schedule_id) is not None

    await eventually(owes)
    await Schedules(client).fire([made.schedule_id])


async def test_a_file_that_is_gone_refuses_its_schedule_and_is_logged_once(
    client: TurnClient, told: Told
) -> None:
    file_id = await uploaded(client)
    batch = BatchRequest(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h")
    made = await overdue(client, batch=batch)
    await client.files.delete(file_id, "default")
    await Schedules(client).fire([made.schedule_id])
    assert told() == [("WARNING", "schedule_refused", "invalid_value")]
    found = await client.schedules.get(made.schedule_id)
    assert found.last_fire is not None
    assert found.last_fire.error is not None
    assert found.last_fire.error.message == f"input_file_id: there is no file {file_id!r} with purpose batch"


async def test_a_schedule_whose_file_is_gone_can_be_paused_and_nothing_else(client: TurnClient) -> None:
    file_id = await uploaded(client)
    batch = BatchRequest(input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h")
    made = await client.schedules.open(ScheduleRequest(cron="0 0 * * *", batch=batch))
    await client.files.delete(file_id, "default")
    for change in (
        ScheduleChange(cron="1 0 * * *"),
        ScheduleChange(paused=True),
        ScheduleChange(paused=False),
    ):
        if change.paused:
            assert (await client.schedules.change(made.schedule_id, change)).paused
            continue
        with pytest.raises(InvalidInput, match="there is no file") as error:
            await client.schedules.change(made.schedule_id, change)
        assert error.value.param == "batch.input_file_id"
    await client.schedules.delete(made.schedule_id)


async def uploaded(client: TurnClient) -> str:
    upload = await client.files.begin("default", "questions.jsonl", "batch")
    await upload.write(b"{}")
    return (await upload.seal()).file_id


async def test_an_erased_conversation_is_not_brought_back(client: TurnClient) -> None:
    """Erased between any two steps of a fire: the loop below stops at each of them in turn."""
    for steps in range(4):
        made = await overdue(client, conversation_id="c")
        fired = asyncio.create_task(Schedules(client).fire([made.schedule_id]))
        for _ in range(steps):
            await client.connection.command("PING")
        await client.erase("c")
        await fired
        assert await client.schedules.page(conversation_id="c") == []
        assert not await client.connection.command("EXISTS", client.turns.keys.conversation("default", "c"))


async def test_what_is_paused_or_of_a_newer_version_stays_as_it_is(
    client: TurnClient, provider: FakeProvider, server: RedisServer
) -> None:
    newer, paused = await overdue(client), await overdue(client)
    server.ask("HSET", client.schedules.keys.schedule(newer.schedule_id), "version", 99)
    await client.schedules.change(paused.schedule_id, ScheduleChange(paused=True))
    async with LocalWorker(client, provider) as worker:
        await worker.reaper.tick()
    await Schedules(client).fire([paused.schedule_id])
    for made in (newer, paused):
        assert (await client.schedules.get(made.schedule_id)).last_fire is None
    assert (await client.schedules.get(newer.schedule_id)).next_at == newer.next_at


async def test_more_than_fire_together_all_fire(client: TurnClient) -> None:
    made = [await overdue(client, catch_up="last") for _ in range(TOGETHER + 3)]
    names = [one.schedule_id for one in made]
    while not all([(await client.schedules.get(name)).last_fire for name in names]):
        await Schedules(client).fire(names)
