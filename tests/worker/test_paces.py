"""What a provider's refusals do to the pace of all workers together, with providers that are simulated."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from aiforge.core.setting_types import Limit
from aiforge.core.types import ProviderError, RateLimitError, UnavailableError
from tests.support.gates import MODEL, Allowing, Sides, press
from tests.support.turns import Connect
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(90)]


@pytest.fixture
async def sides(connect: Connect) -> AsyncIterator[Sides]:
    async with contextlib.AsyncExitStack() as stack:
        yield Sides(connect, stack)


@pytest.mark.soak
@pytest.mark.parametrize("whole_seconds", [False, True], ids=["exact", "whole"])
async def test_a_limit_that_nobody_told_us_of_is_found_and_used(sides: Sides, whole_seconds: bool) -> None:
    """With three workers that want ten times as much; the first seconds find the limit."""
    provider = Allowing(rate=100, whole_seconds=whole_seconds)
    began = time.monotonic()
    await press([await sides(jitter=0.1) for _ in range(3)], provider, width=16, seconds=16)
    used = [at for at in provider.answered if began + 6 < at < began + 16]
    refused = [at for at in provider.refused if at > began + 6]
    assert len(used) >= 0.85 * 100 * 10
    assert len(refused) <= 0.05 * len(used)


@pytest.mark.parametrize(
    ("limit", "latency", "calls"),
    [(None, 0.2, 100), (None, 0.08, 200), (Limit(requests_per_minute=60 * 50), 0.2, 80)],
    ids=["slots", "fast", "rate"],
)
async def test_random_refusals_cost_little_time(
    sides: Sides, limit: Limit | None, latency: float, calls: int
) -> None:
    """5 %, each asking for 0.2 s."""
    two = [await sides(limit, jitter=0.1) for _ in range(2)]
    plain = await press(two, Allowing(latency=latency), width=5, calls=calls)
    noisy = await press(two, Allowing(latency=latency, every=20), width=5, calls=calls)
    assert noisy <= 1.5 * plain + 0.3
    (health,) = await two[0].providers.all()
    assert health.pace == 1


@pytest.mark.parametrize(
    "error",
    [
        RateLimitError("no", status=429),
        RateLimitError("no", status=429, retry_after=0.5),
        UnavailableError("no", status=503),
    ],
    ids=["429", "429 with a hint", "503"],
)
async def test_an_outage_stops_the_herd(sides: Sides, error: ProviderError) -> None:
    """What was under way meets it; then a few calls find out, and all go on when it is over."""
    three = [await sides(jitter=0.1, pause=0.5) for _ in range(3)]
    provider = Allowing()
    pressing = asyncio.create_task(press(three, provider, width=10, calls=150))
    await eventually(lambda: len(provider.answered) >= 60)
    provider.down, began = error, time.monotonic()
    await eventually(lambda: time.monotonic() > began + 1.5)
    met = [at for at in provider.begun if at > began]
    assert len([at for at in met if at < began + 0.5]) <= 60
    assert len([at for at in met if at > began + 0.5]) <= 10
    provider.down = None
    await asyncio.wait_for(pressing, 40)


async def test_all_workers_see_the_same(sides: Sides) -> None:
    three = [await sides(jitter=0.0) for _ in range(3)]
    places = [await three[0].enter() for _ in range(8)]
    for place in places:
        place.leave(ok=False, error=RateLimitError("no", status=429, retry_after=0.5))
    began = time.monotonic()
    await eventually(lambda: not any(side.gate._model("openai", MODEL).free for side in three))
    assert len({str(await side.providers.all()) for side in three}) == 1
    entered = [await side.enter() for side in three[1:]]
    assert time.monotonic() - began >= 0.45
    for place in entered:
        place.leave(ok=True)


async def test_a_refusal_holds_for_its_own_call_even_where_it_is_noise(sides: Sides) -> None:
    """The pauses of noise take little of everyone's time; who was refused waits as long as was asked."""
    one = await sides(jitter=0.0)
    for _ in range(100):
        (await one.enter()).leave(ok=True)
    refusal = RateLimitError("noise", status=429, retry_after=0.4)
    (await one.enter()).leave(ok=False, error=refusal)
    await one.enter()
    began = time.monotonic()
    assert (await one.enter()).leave(ok=False, error=refusal)
    other = await asyncio.create_task(one.enter())
    assert time.monotonic() - began < 0.35
    await one.enter()
    assert time.monotonic() - began >= 0.4
    other.leave(ok=True)
    (await one.enter()).leave(ok=False, error=RateLimitError("no", status=429, retry_after=60))
    elsewhere = one.gate.chats.enter("openai", "another", tokens=lambda: 1, time_left=5.0)
    (await elsewhere).leave(ok=True)
    (await one.enter()).leave(ok=False, error=RateLimitError("no", status=429, retry_after=60))
    with pytest.raises(RateLimitError, match="takes no calls for 60 s"):
        await one.enter(time_left=5.0)
