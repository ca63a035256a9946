"""What one step makes of a model's record, from wherever the steps before have left it."""

from __future__ import annotations

import time
from typing import Final

import pytest

from aiforge.core.setting_types import Limit
from tests.contract.test_providers import NAME, Process, providers
from worker.contract.calls.providers import FAILURES, Ended, Granted
from worker.contract.client import TurnClient

pytestmark = pytest.mark.anyio

LIMITED: Final = Ended("", "limited")
A_MINUTE: Final = 60_000.0


class Model:
    """The record of the one model, and a process that speaks of it."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def is_at(self, **fields: float | str) -> None:
        """It is there, and these of its fields have these values; times are milliseconds from now."""
        await self.process.step()
        now = time.time() * 1000
        times = ("cool_until", "cut_at", "grown_at", "judged_until", "since", "open_until", "counted_at")
        values = [
            part
            for name, value in fields.items()
            for part in (name, now + value if name in times and isinstance(value, float) else value)
        ]
        await self._command("HSET", "name", NAME, *values)

    async def after(self, *ended: Ended, chats: int = 0, in_flight: int = 0) -> Granted:
        return await self.process.step(*ended, chats=chats, in_flight=in_flight)

    async def value(self, field: str) -> float:
        (found,) = await self._command("HMGET", field)
        return float(found or 0)

    async def left(self, field: str) -> float:
        """Milliseconds from now."""
        return await self.value(field) - time.time() * 1000

    async def _command(self, name: str, *values: object) -> list[bytes | None]:
        store = self.process.providers
        record = store.keys.of_provider(NAME)[0]
        return await store._connection.command(name, record, *values)  # type: ignore[no-any-return, arg-type]  # HSET, HMGET


@pytest.fixture
def model(client: TurnClient) -> Model:
    return Model(Process(providers(client), "one", Limit(requests_per_minute=60_000)))


async def test_after_a_long_pause_the_pace_is_whole_again_within_a_second(model: Model) -> None:
    await model.after(Ended("", "limited", retry_after=30))
    assert await model.value("ramp_ms") == 1_000
    assert 25_000 < await model.left("cool_until") <= 30_000


async def test_a_pause_that_nobody_has_named_is_two_minutes_at_most(model: Model) -> None:
    await model.is_at(cools=30.0)
    await model.after(*[LIMITED] * 8)
    assert 100_000 < await model.left("cool_until") <= 120_000


async def test_a_pause_that_says_more_is_believed_while_the_model_cools(model: Model) -> None:
    """Though what was paused already is more than noise may take."""
    await model.is_at(won=500.0, paused=4_000.0, cool_until=5_000.0)
    await model.after(Ended("", "limited", retry_after=20))
    assert 15_000 < await model.left("cool_until") <= 20_000
    await model.is_at(won=500.0, paused=4_000.0, cool_until=-1.0)
    await model.after(Ended("", "limited", retry_after=20))
    assert await model.left("cool_until") < 0


@pytest.mark.parametrize(
    ("fields", "cut"),
    [
        ({"factor": 0.5, "mark": 0.9, "won": 100.0, "lost": 8.0}, 0.5 * 0.75 * 0.95),
        ({"factor": 0.5, "mark": 0.4, "won": 80.0, "lost": 12.0}, 0.5 * 80 / 100 * 0.95),
        ({"factor": 0.5, "mark": 0.4, "won": 10.0, "lost": 80.0}, 0.5 * 0.5 * 0.95),
        ({"factor": 0.002, "mark": 0.001, "won": 10.0, "lost": 80.0}, 0.002),
    ],
    ids=["before it came back", "to what was answered", "to a half at most", "never to nothing"],
)
async def test_how_deep_a_cut_is(model: Model, fields: dict[str, float | str], cut: float) -> None:
    await model.is_at(**fields)
    await model.after(*[LIMITED] * 8)
    assert await model.value("factor") == pytest.approx(cut, rel=0.03)
    assert (await model.value("won"), await model.value("lost")) == (0, 0)
    assert -5_000 < await model.left("counted_at") <= 0


async def test_what_was_under_way_at_a_cut_cuts_no_more(model: Model) -> None:
    await model.is_at(won=20.0)
    await model.after(*[Ended("", "limited", retry_after=0.001)] * 8)
    factor = await model.value("factor")
    assert factor < 1
    assert 0 < await model.left("judged_until") <= 250
    await model.is_at(judged_until=A_MINUTE, cut_at=0.0)
    await model.after(*[Ended("", "limited", retry_after=0.001)] * 8)
    assert await model.value("factor") == factor


async def test_how_long_a_pace_holds_is_not_forgotten_at_the_next_cut(model: Model) -> None:
    await model.is_at(won=20.0, hold_ms=16_000.0)
    await model.after(*[LIMITED] * 8)
    assert await model.value("hold_ms") == 16_000


async def test_an_answer_while_the_model_cools_says_nothing_of_the_pace(model: Model) -> None:
    """It was asked for before."""
    await model.is_at(factor=0.5, mark=1.0, cools=3.0, grown_at=-A_MINUTE, cool_until=A_MINUTE)
    await model.after(Ended("", "ok"))
    assert (await model.value("factor"), await model.value("cools")) == (0.5, 3)
    await model.is_at(cool_until=-1.0)
    await model.after(Ended("", "ok"))
    assert (await model.value("factor"), await model.value("cools")) == (1, 0)


async def test_a_pace_that_is_whole_again_begins_anew(model: Model) -> None:
    await model.is_at(factor=0.9, mark=1.0, hold_ms=16_000.0, trims=2.0, grown_at=-A_MINUTE)
    await model.after(Ended("", "ok"))
    found = [await model.value(field) for field in ("factor", "mark", "hold_ms", "trims")]
    assert found == [1, 0, 0, 0]


async def test_while_nothing_at_all_is_answered_one_call_a_second_finds_out(model: Model) -> None:
    await model.is_at(silent=1.0)
    assert (await model.after(chats=3)).chats == 1
    assert 500 < await model.left("next_request") <= 1_000
    await model.after(Ended(model.process.permit(), "ok"))
    assert await model.left("next_request") <= 0, "an answer lets the next one begin at once"


async def test_after_an_hour_without_an_answer_the_pace_comes_back_in_seconds(model: Model) -> None:
    await model.is_at(
        state="half_open", probe="", opens=30.0, failures=900.0, factor=0.002, mark=0.0, cools=40.0,
        grown_at=-3_600_000.0, cut_at=-3_600_000.0,
    )  # fmt: skip
    assert (await model.after(chats=1)).chats == 1
    told = await model.after(Ended(model.process.permit(), "failed"))
    assert not told.well
    assert 100_000 < await model.left("open_until") <= 120_000, "no pause is longer, however often it failed"
    await model.is_at(state="half_open", probe="", next_request=0)
    assert (await model.after(chats=1)).chats == 1
    await model.after(Ended(model.process.permit(), "ok"))
    assert [await model.value(field) for field in ("opens", "good", "bad", "factor")] == [0, 0, 0, 0.002]
    for field in ("cut_at", "grown_at"):
        assert -5_000 < await model.left(field) <= 0
    for _ in range(5):
        await model.is_at(grown_at=-5_000.0)
        await model.after(Ended("", "ok"))
    assert await model.value("factor") == 1


@pytest.mark.parametrize(
    ("fields", "well"),
    [
        ({}, True),
        ({"failures": 1}, False),
        ({"silent": 1}, False),
        ({"factor": 0.9, "base": 1_000}, False),
        ({"state": "open", "open_until": A_MINUTE}, False),
        ({"state": "half_open", "probe": ""}, False),
        ({"cool_until": A_MINUTE, "ramp_ms": 1_000}, False),
        ({"cool_until": -1.0, "ramp_ms": A_MINUTE}, False),
        ({"cool_until": -A_MINUTE, "ramp_ms": 1_000}, True),
    ],
    ids=str,
)
async def test_what_is_well_is_called_without_asking(
    model: Model, fields: dict[str, float | str], well: bool
) -> None:
    await model.is_at(**fields)
    assert (await model.after()).well is well
    assert await model.process.providers.unwell() == (set() if well else {NAME})


async def test_answers_are_counted_from_the_first_step_on(model: Model) -> None:
    """Or from where the process began to count that had asked nobody."""
    await model.after(Ended("", "ok"))
    assert -5_000 < await model.left("counted_at") <= 0
    await model.process.step(answered=10.0, seconds=30.0)
    assert -35_000 < await model.left("counted_at") <= -30_000


async def test_where_nothing_at_all_is_answered_the_right_pace_is_not_forgotten(model: Model) -> None:
    await model.is_at(factor=0.6, mark=0.3)
    await model.after(*[LIMITED] * 8)
    assert (await model.value("silent"), await model.value("mark")) == (1, 0.6)


async def test_who_waits_for_long_counts_as_waiting_only_until_it_asks_again(model: Model) -> None:
    """It may be gone by then, and would keep items waiting."""
    model.process.limit = Limit(tokens_per_minute=6_000)
    assert (await model.process.step(chats=1, tokens=60_000)).chats == 1
    assert (await model.process.step(chats=1)).wait > 500
    assert await model.left("chat_waits") <= 1_050


async def test_the_smallest_share_is_one_item(client: TurnClient) -> None:
    process = Process(providers(client, batch_share=0.05), "one", Limit(concurrency=10))
    granted = await process.step(chats=1, items=3)
    assert (granted.chats, granted.items, granted.reason) == (1, 1, "share")


async def test_a_model_without_a_limit_is_called_again_after_an_outage(client: TurnClient) -> None:
    """At a pace that begins low, because nobody knows how much it takes."""
    model = Model(Process(providers(client), "one", None))
    await model.is_at(state="half_open", probe="", opens=1.0)
    assert (await model.after(chats=1)).chats == 1
    await model.after(Ended(model.process.permit(), "ok"), in_flight=1)
    assert await model.value("base") == pytest.approx(2, rel=0.3)
    assert await model.value("factor") == 0.5


async def test_workers_ask_again_at_different_times(client: TurnClient) -> None:
    model = Model(Process(providers(client, jitter=1000, pause=1), "one"))
    await model.after(*[Ended("", "failed")] * FAILURES)
    assert await model.left("open_until") > 1_500


async def test_of_several_refusals_the_longest_is_believed(model: Model) -> None:
    await model.after(*[Ended("", "limited", retry_after=after) for after in (1, 9, 2)])
    assert 5_000 < await model.left("cool_until") <= 9_000
    assert await model.value("paused") == pytest.approx(9_000, rel=0.01)


async def test_a_slower_pace_is_also_fewer_calls_at_a_time(client: TurnClient) -> None:
    model = Model(Process(providers(client), "one", Limit(concurrency=10)))
    await model.is_at(factor=0.5, base=100_000.0)
    assert (await model.after(chats=10)).chats == 5
    await model.is_at(factor=0.002)
    assert (await model.after(chats=1)).reason == "concurrency"


async def test_old_failures_that_are_not_in_a_row_open_no_circuit(model: Model) -> None:
    for since, reason in ((-31_000.0, ""), (-29_000.0, "open")):
        await model.is_at(since=since, bad=2.0 * FAILURES - 1, good=1.0, failures=0.0)
        assert (await model.after(Ended("", "failed"), chats=1)).reason == reason


async def test_failures_that_are_less_than_half_open_no_circuit(model: Model) -> None:
    await model.is_at(since=0.0, bad=2.0 * FAILURES - 1, good=100.0, failures=0.0)
    assert (await model.after(Ended("", "failed"), chats=1)).reason == ""


async def test_a_late_failure_leaves_an_open_circuit_as_it_is(model: Model) -> None:
    await model.is_at(state="open", opens=1.0, failures=8.0, open_until=A_MINUTE)
    await model.after(Ended("", "failed"))
    assert await model.value("opens") == 1


@pytest.mark.parametrize(
    ("limit", "field"),
    [
        (Limit(requests_per_minute=6), "next_request"),
        (Limit(tokens_per_minute=60), "next_token"),
    ],
    ids=["requests", "tokens"],
)
async def test_a_limit_is_used_at_the_pace_there_is(model: Model, limit: Limit, field: str) -> None:
    model.process.limit = limit
    await model.is_at(factor=0.5)
    assert (await model.process.step(chats=1, tokens=10)).chats == 1
    assert await model.left(field) == pytest.approx(20_000, abs=4_000)


async def test_an_answer_after_a_long_silence_brings_back_no_more_than_a_second_does(model: Model) -> None:
    await model.is_at(factor=0.01, mark=1.0, grown_at=-A_MINUTE)
    await model.after(Ended("", "ok"))
    assert await model.value("factor") == pytest.approx(0.04)
