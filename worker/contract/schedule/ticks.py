"""When a schedule fires: a cron expression in a time zone, as Unix seconds."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from itertools import islice, takewhile
from typing import Final, Literal, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from worker.contract.errors import InvalidInput

CatchUp: TypeAlias = Literal["skip", "last", "all"]
"""What becomes of missed ticks: they are left out, are made up for by the latest one, or all fire."""
MISSED_AFTER: Final = 15
"""Seconds after which a tick that nobody has fired is missed."""
MOST_TICKS: Final = 100
"""How many ticks fire together at most: of more that were missed the latest."""
LONGEST_CRON: Final = 200
_NO_ZONES: Final = ("localtime", "posixrules", "right/")
"""Files beside the zones: what each machine makes of itself, and clocks that count leap seconds."""
_ALLOWED: Final = {
    "second": "0-59",
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31 or L",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT",
}


class Timing(NamedTuple):
    """An expression with its zone and its end (Unix seconds, None for never), all of them checked."""

    cron: str
    timezone: str
    ends_at: float | None = None


class Due(NamedTuple):
    """The ticks that are to fire now, in order, and the first one that is to come."""

    fire: list[int]
    following: int | None


def check_timing(timing: Timing) -> None:
    """Raises InvalidInput naming `cron` or `timezone`, and of an expression the field that is wrong."""
    _zone(timing.timezone)
    if len(timing.cron) > LONGEST_CRON:
        raise InvalidInput(f"cron: at most {LONGEST_CRON} characters", param="cron")
    try:
        CronSim(timing.cron, datetime.now(UTC))
    except CronSimError as error:
        raise InvalidInput(f"cron: {_explained(str(error), timing.cron)}", param="cron") from None


def ticks(timing: Timing, after: float) -> Iterator[int]:
    """All ticks behind a time, in order."""
    start = datetime.fromtimestamp(after, _zone(timing.timezone))
    last = int(after)
    for moment in CronSim(timing.cron, start):
        tick = int(moment.timestamp())
        if timing.ends_at is not None and tick > timing.ends_at:
            return
        # Where clocks are put back, the library counts an hour's second run as the first.
        if tick > last:
            last = tick
            yield tick


def first_tick(timing: Timing, after: float) -> int | None:
    """The first tick behind a time; None when there is none."""
    return next(ticks(timing, after), None)


def due(timing: Timing, catch_up: CatchUp, expected: int, now: float) -> Due:
    """What a schedule owes whose next tick was `expected`."""
    passed, following = [expected], None
    for tick in ticks(timing, expected):
        if tick > now:
            following = tick
            break
        passed.append(tick)
        if len(passed) > MOST_TICKS:
            passed = _latest(timing, expected, now)
            following = first_tick(timing, now)
            break
    missed = now - passed[0] > MISSED_AFTER
    match catch_up:
        case "skip":
            passed = [tick for tick in passed if now - tick <= MISSED_AFTER]
        case "last" if missed:
            passed = passed[-1:]
    return Due(passed, following)


def _latest(timing: Timing, expected: int, now: float) -> list[int]:
    """The latest ticks up to now. There may have been a million, so where to begin is counted backwards."""
    until = now if timing.ends_at is None else min(now, timing.ends_at)
    start = datetime.fromtimestamp(int(until) + 1, _zone(timing.timezone))
    *_, first = islice(CronSim(timing.cron, start, reverse=True), MOST_TICKS)
    # Only forwards do ticks stand where they fire when the clocks are put back.
    begin = max(expected, int(first.timestamp())) - 1
    return list(deque(takewhile(lambda tick: tick <= now, ticks(timing, begin)), MOST_TICKS))


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    with contextlib.suppress(ZoneInfoNotFoundError, ValueError, OSError):
        if not name.startswith(_NO_ZONES):
            return ZoneInfo(name)
    raise InvalidInput(
        f"timezone: {name[:64]!r} is no zone of the IANA database, such as Europe/Berlin",
        param="timezone",
    )


def _parses(cron: str) -> bool:
    try:
        CronSim(cron, datetime.now(UTC))
    except CronSimError:
        return False
    return True


def _explained(error: str, cron: str) -> str:
    parts = cron.split()
    name = error.removeprefix("Bad ")
    if name not in _ALLOWED:
        return f"has five fields (minute hour day month weekday) or six (second first), not {len(parts)}"
    if len(parts) == 5:
        parts.insert(0, "0")
    wrong = parts[list(_ALLOWED).index(name)]
    if name == "day-of-month" and _parses(f"0 0 {wrong} * *"):
        return "this expression never comes due: none of its months has such a day"
    return f"bad {name} {wrong!r}; it takes {_ALLOWED[name]}, with * , - /"
