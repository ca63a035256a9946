"""When a schedule fires: expressions, time zones with their odd nights, and ticks that were missed."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.contract.errors import InvalidInput
from worker.contract.schedule.ticks import (
    MISSED_AFTER,
    MOST_TICKS,
    CatchUp,
    Timing,
    check_timing,
    due,
    first_tick,
    ticks,
)


def second(text: str, zone: ZoneInfo | None = None) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone or UTC).timestamp())


def shown(timing: Timing, after: str, count: int) -> list[str]:
    """The next ticks in the schedule's own time."""
    zone = ZoneInfo(timing.timezone)
    found = islice(ticks(timing, second(after, zone)), count)
    return [datetime.fromtimestamp(tick, zone).isoformat() for tick in found]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("*/20 * * * *", ["2026-01-01T00:20:00+00:00", "2026-01-01T00:40:00+00:00"]),
        ("0 9 * * MON-FRI", ["2026-01-01T09:00:00+00:00", "2026-01-02T09:00:00+00:00"]),
        ("*/30 0 0 * * *", ["2026-01-01T00:00:30+00:00", "2026-01-02T00:00:00+00:00"]),
        ("0 12 L * *", ["2026-01-31T12:00:00+00:00", "2026-02-28T12:00:00+00:00"]),
    ],
)
def test_a_tick_lies_behind_the_time_it_is_asked_from(cron: str, expected: list[str]) -> None:
    assert shown(Timing(cron, "UTC"), "2026-01-01T00:00:00", 2) == expected


def test_an_hour_that_clocks_leave_out_fires_behind_it() -> None:
    timing = Timing("30 2 * * *", "Europe/Berlin")
    assert shown(timing, "2026-03-28T12:00:00", 2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


def test_an_hour_that_clocks_repeat_fires_once() -> None:
    timing = Timing("30 2 * * *", "Europe/Berlin")
    first, then = "2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"
    assert shown(timing, "2026-10-24T12:00:00", 2) == [first, then]
    # Asked in the hour's second run, at 02:10 winter time, the tick of the first one does not come again.
    late = int(datetime.fromisoformat("2026-10-25T02:10:00+01:00").timestamp())
    assert first_tick(timing, late) == int(datetime.fromisoformat(then).timestamp())


def test_an_interval_goes_on_through_both_nights() -> None:
    timing = Timing("*/30 * * * *", "Europe/Berlin")
    for night in ("2026-03-29T00:59:00", "2026-10-24T23:59:00"):
        found = list(islice(ticks(timing, second(night)), 8))
        assert {later - earlier for earlier, later in pairwise(found)} == {1800}


def test_nothing_fires_behind_the_end() -> None:
    end = second("2026-01-01T00:40:00")
    timing = Timing("*/20 * * * *", "UTC", ends_at=end)
    assert list(ticks(timing, second("2026-01-01T00:00:00"))) == [end - 1200, end]
    assert first_tick(timing, end) is None


@pytest.mark.parametrize(
    ("cron", "says"),
    [
        ("61 * * * *", "bad minute '61'; it takes 0-59"),
        ("0 24 * * *", "bad hour '24'"),
        ("0 0 32 * *", "bad day-of-month '32'"),
        ("0 0 * 13 *", "bad month '13'"),
        ("0 0 * * FUN", "bad day-of-week 'FUN'"),
        ("0 0 31 2 *", "cron: this expression never comes due: none of its months has such a day"),
        ("0 0 30 2 *", "cron: this expression never comes due"),
        ("0 0 31 4-4,6 ?", "bad day-of-week"),
        ("99 0 0 * * *", "bad second '99'"),
        ("* * * *", "five fields .* not 4"),
        ("", "five fields .* not 0"),
        ("@daily", "five fields .* not 1"),
        ("1" * 5000 + " * * * *", "at most 200 characters"),
        ("*/0 * * * *", "bad minute"),
    ],
)
def test_what_is_no_expression_is_refused_by_its_field(cron: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as refused:
        check_timing(Timing(cron, "UTC"))
    assert refused.value.param == "cron"


@pytest.mark.parametrize(
    "zone",
    ["", "Europe", "Mars/Base", "/etc/passwd", "../UTC", "x" * 500, "a\x00b", ".", "localtime", "right/UTC"],
)
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidInput, match="timezone") as refused:
        check_timing(Timing("* * * * *", zone))
    assert refused.value.param == "timezone"


MINUTE = Timing("* * * * *", "UTC")
NOON = second("2026-01-01T12:00:00")


@pytest.mark.parametrize("catch_up", ["skip", "last", "all"])
def test_a_tick_on_time_fires_whatever_is_done_with_missed_ones(catch_up: CatchUp) -> None:
    assert due(MINUTE, catch_up, NOON, NOON + 2) == ([NOON], NOON + 60)
    every = Timing("* * * * * *", "UTC")
    assert due(every, catch_up, NOON, NOON + 2.5) == ([NOON, NOON + 1, NOON + 2], NOON + 3)


@pytest.mark.parametrize(
    ("catch_up", "fired"),
    [("skip", [NOON + 180]), ("last", [NOON + 180]), ("all", [NOON, NOON + 60, NOON + 120, NOON + 180])],
)
def test_missed_ticks_are_caught_up_with_as_asked(catch_up: CatchUp, fired: list[int]) -> None:
    assert due(MINUTE, catch_up, NOON, NOON + 185) == (fired, NOON + 240)


def test_a_tick_is_missed_when_it_is_too_late() -> None:
    late = NOON + MISSED_AFTER + 1
    assert due(MINUTE, "skip", NOON, late) == ([], NOON + 60)
    assert due(MINUTE, "last", NOON, late) == ([NOON], NOON + 60)


def test_of_a_million_missed_ticks_the_latest_fire() -> None:
    every, now = Timing("* * * * * *", "UTC"), NOON + 10_000_000
    fire, following = due(every, "all", NOON, now)
    assert (fire, following) == (list(range(now - MOST_TICKS + 1, now + 1)), now + 1)
    assert due(every, "last", NOON, now) == ([now], now + 1)
    assert due(every, "skip", NOON, now).fire == list(range(now - MISSED_AFTER, now + 1))


def test_the_end_may_lie_among_the_missed() -> None:
    every = Timing("* * * * * *", "UTC", ends_at=NOON + 500)
    fire, following = due(every, "all", NOON, NOON + 1000)
    assert (fire[-1], len(fire), following) == (NOON + 500, MOST_TICKS, None)


@given(
    cron=st.sampled_from(
        ["30 2 * * *", "0 2,3 * * *", "*/15 * * * *", "15 */2 * * *", "0,30 1-3 * * *", "0,30 */2 * * * *"]
    ),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "America/St_Johns"]),
    night=st.sampled_from(["2026-03-29T01:00", "2026-10-25T01:00", "2026-03-08T07:00", "2026-11-01T06:00"]),
    offset=st.integers(-9_000, 9_000),
    waits=st.lists(st.integers(1, 4_000), min_size=1, max_size=12),
)
def test_however_often_somebody_looks_every_tick_fires_once(
    cron: str, zone: str, night: str, offset: int, waits: list[int]
) -> None:
    """Around the nights that clocks change, with any pauses: nothing is left out, nothing comes twice."""
    timing, start = Timing(cron, zone), second(night) + offset
    expected, now, fired = first_tick(timing, start), float(start), list[int]()
    for wait in waits:
        now += wait
        assert expected is not None
        if expected <= now:
            fire, expected = due(timing, "all", expected, now)
            fired += fire
    assert fired == list(takewhile(lambda tick: tick <= now, ticks(timing, start)))
