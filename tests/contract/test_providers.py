"""The health of models: pace, places, cool-downs, circuits and lanes, by Redis's own clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from aiforge.core.setting_types import Limit
from tests.support.waiting import eventually
from worker.contract.calls.providers import FAILURES, Ended, Granted, Outcome, Providers, Wants, permit_of
from worker.contract.client import TurnClient
from worker.contract.errors import NotFound

pytestmark = pytest.mark.anyio

NAME = "openai/gpt-4o-mini"
WIDE = Limit(concurrency=1_000)


class Process:
    """One worker process's side of a model."""

    def __init__(self, providers: Providers, name: str, limit: Limit | None = WIDE) -> None:
        self.providers = providers
        self.name = name
        self.limit = limit
        self.number = 0

    async def step(
        self, *ended: Ended, chats: int = 0, items: int = 0, tokens: int = 0, **more: Any
    ) -> Granted:
        self.number += 1
        wants = Wants(ended=ended, chats=[tokens] * chats, items=[tokens] * items, **more)
        return await self.providers.step(NAME, self.name, self.number, wants, self.limit)

    def permit(self, lane: Literal["chat", "batch"] = "chat", index: int = 1) -> str:
        """A place of the last step."""
        return permit_of(self.name, self.number, lane, index)

    async def admitted(self, lane: Literal["chat", "batch"] = "chat") -> str:
        """A place, as soon as there is one."""
        found: list[str] = []

        async def got() -> bool:
            granted = await self.step(chats=int(lane == "chat"), items=int(lane == "batch"))
            found.extend([self.permit(lane)] if granted.chats + granted.items else [])
            return bool(found)

        await eventually(got)
        return found[0]

    async def ends(self, outcome: Outcome, times: int = 1, **more: Any) -> Granted:
        """Calls that ended so, which had no place."""
        return await self.step(*[Ended("", outcome, **more)] * times)


def providers(client: TurnClient, **settings: float) -> Providers:
    known = {"jitter": 0.0, "pause": 0.2}
    return Providers(client.connection, client.settings.namespace, **{**known, **settings})


@pytest.fixture
def one(client: TurnClient) -> Process:
    return Process(providers(client), "one")


@pytest.fixture
def two(client: TurnClient) -> Process:
    return Process(providers(client), "two")


async def begun(processes: Sequence[Process], seconds: float) -> list[float]:
    """When calls began that all of these processes wanted to make at once for so long."""
    times: list[float] = []
    until = time.monotonic() + seconds

    async def ask(process: Process) -> None:
        while time.monotonic() < until:
            granted = await process.step(chats=32)
            times.extend([time.monotonic()] * granted.chats)
            await asyncio.wait([asyncio.create_task(asyncio.Event().wait())], timeout=granted.wait)

    await asyncio.gather(*map(ask, processes))
    return times


async def test_a_model_that_is_well_lets_everybody_in(one: Process) -> None:
    assert await one.step(chats=3, items=2) == Granted(3, 2, 0, "", well=True)


async def test_a_rate_holds_for_all_processes_together(one: Process, two: Process) -> None:
    one.limit = two.limit = Limit(requests_per_minute=60 * 40)
    times = await begun([one, two], 1.0)
    assert 10 <= len(times) <= 40 * 1.2


async def test_tokens_are_a_rate_and_are_settled(one: Process) -> None:
    one.limit = Limit(tokens_per_minute=60_000, burst_seconds=1)
    assert (await one.step(chats=3, tokens=900)).chats == 2
    permit = one.permit()
    refused = await one.step(chats=1, tokens=900)
    assert refused.reason == "tokens"
    assert refused.wait == pytest.approx(0.8, abs=0.15)
    assert (await one.step(Ended(permit, "ok", beyond=-900), chats=1, tokens=900)).chats == 1


@pytest.mark.parametrize("raised", [Limit(tokens_per_minute=6_000_000), Limit(concurrency=9)])
async def test_a_limit_that_is_raised_holds_at_once(one: Process, two: Process, raised: Limit) -> None:
    """What a call took ahead of the old one is no longer waited for."""
    one.limit, two.limit = Limit(tokens_per_minute=6_000), raised
    assert (await one.step(chats=1, tokens=60_000)).chats == 1
    assert (await one.step(items=1, tokens=1)).wait == pytest.approx(600, abs=5)
    assert (await two.step(chats=1, tokens=1)).wait <= 0.6
    await two.admitted()
    (health,) = await two.providers.all()
    assert health.tokens_per_minute == raised.tokens_per_minute


async def test_a_limit_that_is_lowered_keeps_what_was_taken(one: Process, two: Process) -> None:
    one.limit, two.limit = Limit(requests_per_minute=3), Limit(requests_per_minute=1)
    assert (await one.step(chats=1)).chats == 1
    assert (await two.step(chats=1)).wait == pytest.approx(60, abs=10)


async def test_concurrency_is_counted_over_processes_and_lanes(one: Process, two: Process) -> None:
    one.limit = two.limit = Limit(concurrency=3)
    assert (await one.step(chats=1, items=1))[:2] == (1, 1)
    permit = one.permit()
    granted = await two.step(chats=2)
    assert granted[:2] == (1, 0)
    assert granted.reason == "concurrency"
    assert (await one.step(Ended(permit, "ok")))[:2] == (0, 0)
    assert (await two.step(chats=2)).chats == 1


async def test_a_killed_worker_leaks_no_place(client: TurnClient) -> None:
    short = providers(client, permit=0.3)
    dead, lives = Process(short, "dead", Limit(concurrency=2)), Process(short, "lives", Limit(concurrency=2))
    assert (await dead.step(chats=1)).chats == (await lives.step(chats=1)).chats == 1
    kept = lives.permit()

    async def both() -> bool:
        await short.renew(NAME, [kept])
        return bool((await dead.step(chats=1)).chats)

    await eventually(both)
    assert (await lives.step(chats=1)).reason == "concurrency"
    (health,) = await short.all()
    assert health.chats_in_flight == 2


async def test_a_step_that_is_repeated_changes_nothing(one: Process, two: Process) -> None:
    one.limit = two.limit = Limit(concurrency=2)
    first = await one.step(Ended("", "failed"), chats=1)
    one.number -= 1
    assert await one.step(Ended("", "failed"), chats=1) == first
    assert (await two.step(chats=2)).chats == 1
    (health,) = await one.providers.all()
    assert health.failures == 1


async def test_a_place_is_given_back_once(one: Process) -> None:
    await one.step(chats=1)
    permit = one.permit()
    await one.step(Ended(permit, "failed"))
    await one.step(Ended(permit, "failed"))
    (health,) = await one.providers.all()
    assert (health.failures, health.chats_in_flight) == (1, 0)


@pytest.mark.parametrize("outcome", ["limited", "overloaded"])
async def test_a_refusal_cools_the_model_for_everyone(one: Process, two: Process, outcome: Outcome) -> None:
    assert (await one.step(chats=1)).well
    began = time.monotonic()
    told = await one.ends(outcome, retry_after=0.4)
    assert not told.well
    refused = await two.step(chats=1)
    assert (refused.chats, refused.reason) == (0, "cooling")
    assert refused.wait == pytest.approx(0.4, abs=0.15)
    assert await two.providers.unwell() == {NAME}
    await two.admitted()
    assert time.monotonic() - began >= 0.4


async def test_jitter_is_on_top_and_no_hint_is_half_a_second_that_doubles(client: TurnClient) -> None:
    late = Process(providers(client, jitter=1000), "late")
    await late.ends("limited", retry_after=0.5)
    assert (await late.step(chats=1)).wait > 1
    await late.providers.reset(NAME)
    plain = Process(providers(client), "plain")
    await plain.ends("limited")
    assert (await plain.step(chats=1)).wait == pytest.approx(0.5, abs=0.15)
    permit = await plain.admitted()
    await plain.step(Ended(permit, "limited"))
    assert (await plain.step(chats=1)).wait == pytest.approx(1.0, abs=0.15)


async def test_a_wave_of_refusals_halves_the_pace_once_and_success_lets_it_grow(one: Process) -> None:
    one.limit = Limit(requests_per_minute=6_000)
    await one.step(chats=8)
    permits = [one.permit(index=index) for index in range(1, 9)]
    await one.step(*[Ended(permit, "limited", retry_after=0.05) for permit in permits])
    (health,) = await one.providers.all()
    assert health.pace == 0.475
    await one.step(Ended("", "limited", retry_after=0.05))
    assert (await one.providers.all())[0].pace == 0.475
    permit, paces = await one.admitted(), []
    for _ in range(3):
        await one.step(Ended(permit, "ok"))
        paces.append((await one.providers.all())[0].pace)
        permit = await one.admitted()
    assert paces == sorted(paces)
    assert paces[-1] > 0.475


async def test_the_pace_is_cut_to_the_share_that_was_answered(one: Process) -> None:
    one.limit = Limit(requests_per_minute=60_000)
    await one.step(*[Ended("", "ok")] * 14, *[Ended("", "limited", retry_after=0.01)] * 6)
    (health,) = await one.providers.all()
    assert health.pace == pytest.approx(0.7 * 0.95, abs=0.01)


async def test_a_refusal_among_many_answers_slows_nobody_down(one: Process) -> None:
    one.limit = Limit(requests_per_minute=60_000)
    await one.step(*[Ended("", "ok")] * 95, *[Ended("", "limited", retry_after=0.6)] * 5)
    (health,) = await one.providers.all()
    assert health.pace == 1
    assert (await one.step(chats=1)).reason == "cooling"
    permit = await one.admitted()
    assert (await one.step(Ended(permit, "ok"))).chats == 0


async def test_pauses_for_noise_take_little_of_the_time(one: Process) -> None:
    await one.step(*[Ended("", "ok")] * 200, Ended("", "limited", retry_after=0.4))
    permit = await one.admitted()
    told = await one.step(Ended(permit, "limited", retry_after=60), chats=1)
    assert (told.chats, told.reason) == (1, "")


async def test_a_limit_is_believed_each_time(one: Process) -> None:
    await one.step(*[Ended("", "limited", retry_after=0.4)] * 8)
    permit = await one.admitted()
    told = await one.step(Ended(permit, "limited", retry_after=60), chats=1)
    assert (told.chats, told.reason) == (0, "cooling")


async def test_what_other_workers_had_answered_makes_up_for_a_cut_that_knew_nothing_of_it(
    one: Process, two: Process
) -> None:
    one.limit = two.limit = None
    told: dict[str, Any] = {"answered": 300.0, "seconds": 30.0}
    await one.step(*[Ended("", "limited", retry_after=0.01)] * 50, **told)
    await two.step(**told)
    record = one.providers.keys.of_provider(NAME)[0]
    (base,) = await one.providers._connection.command("HMGET", record, "base")
    assert float(base) == pytest.approx(2 * 2 * 300 / 5, rel=0.05)


async def test_without_a_limit_the_ramp_begins_at_what_was_under_way(one: Process) -> None:
    one.limit = None
    await one.step(*[Ended("", "limited", retry_after=0.05)] * 5, in_flight=20)
    permit = await one.admitted()
    await one.step(Ended(permit, "ok"))
    times = await begun([one], 1.0)
    assert 5 <= len(times) <= 24


async def test_failures_in_a_row_open_the_circuit(one: Process, two: Process) -> None:
    await one.ends("failed", FAILURES - 1)
    assert (await two.step(chats=1)).chats == 1
    await two.step(Ended(two.permit(), "failed"))
    refused = await one.step(chats=1)
    assert (refused.chats, refused.reason) == (0, "open")
    assert refused.wait == pytest.approx(0.2, abs=0.1)


async def test_a_success_between_failures_keeps_the_circuit_closed(one: Process) -> None:
    await one.ends("failed", FAILURES - 1)
    assert not (await one.step(chats=1)).well
    assert (await one.step(Ended(one.permit(), "ok"))).well
    await one.ends("failed", FAILURES - 1)
    assert (await one.step(chats=1)).chats == 1


async def test_failures_that_are_half_of_all_open_it_too(one: Process) -> None:
    for _ in range(FAILURES * 2):
        await one.step(Ended("", "ok"), Ended("", "failed"))
    assert (await one.step(chats=1)).reason == "open"


async def test_one_probe_among_all_processes_closes_it(one: Process, two: Process) -> None:
    await one.ends("failed", FAILURES)
    permit = await one.admitted()
    for process in (one, two):
        refused = await process.step(chats=5, items=5)
        assert (refused.chats, refused.items, refused.reason) == (0, 0, "probing")
    await one.step(Ended(permit, "ok"))
    (health,) = await one.providers.all()
    assert (health.circuit, health.pace) == ("closed", 0.5)
    await two.admitted()


async def test_a_probe_that_fails_opens_it_for_twice_as_long(one: Process, two: Process) -> None:
    await one.ends("failed", FAILURES)
    permit = await one.admitted()
    await one.step(Ended(permit, "failed"))
    refused = await two.step(chats=1)
    assert refused.reason == "open"
    assert refused.wait == pytest.approx(0.4, abs=0.1)


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "stopped"])
async def test_a_probe_that_says_nothing_is_followed_by_another(client: TurnClient, killed: bool) -> None:
    short = providers(client, permit=0.3)
    one, two = Process(short, "one"), Process(short, "two")
    await one.ends("failed", FAILURES)
    permit = await one.admitted()
    assert (await two.step(chats=1)).reason == "probing"
    if not killed:
        await one.step(Ended(permit, "none"))
    await two.admitted()


async def test_a_chat_that_waits_goes_before_items(one: Process, two: Process) -> None:
    one.limit = two.limit = Limit(concurrency=1)
    await one.step(items=1)
    held = one.permit("batch")
    assert (await two.step(chats=1)).reason == "concurrency"
    refused = await one.step(Ended(held, "ok"), items=1)
    assert (refused.items, refused.reason) == (0, "chats")
    assert (await two.step(chats=1, items=1))[:2] == (1, 0)


async def test_items_leave_a_share_to_chats_that_are_about(client: TurnClient) -> None:
    shared = Process(providers(client, batch_share=0.8), "shared", Limit(concurrency=10))
    await shared.step(items=10)
    assert (await shared.providers.all())[0].items_in_flight == 10
    await shared.step(*[Ended(shared.permit("batch", index), "ok") for index in range(1, 11)])
    granted = await shared.step(chats=1, items=10)
    assert (granted.chats, granted.items, granted.reason) == (1, 8, "share")
    assert (await shared.step(chats=1)).chats == 1


async def test_the_share_holds_for_the_rate(client: TurnClient) -> None:
    limit = Limit(requests_per_minute=60 * 40)
    shared = Process(providers(client, batch_share=0.5), "shared", limit)
    await shared.step(chats=1)
    items, until = 0, time.monotonic() + 1.0
    while time.monotonic() < until:
        items += (await shared.step(items=16)).items
    assert 5 <= items <= 24


async def test_the_share_holds_for_tokens(client: TurnClient) -> None:
    limit = Limit(tokens_per_minute=60 * 4_000)
    shared = Process(providers(client, batch_share=0.5), "shared", limit)
    await shared.step(chats=1, tokens=100)
    items, until = 0, time.monotonic() + 1.0
    while time.monotonic() < until:
        items += (await shared.step(items=16, tokens=100)).items
    assert 5 <= items <= 24


async def test_what_an_item_took_beyond_its_estimate_counts_to_the_share(client: TurnClient) -> None:
    limit = Limit(tokens_per_minute=60_000, burst_seconds=0)
    shared = Process(providers(client, batch_share=0.5), "shared", limit)
    await shared.step(chats=1, tokens=1)
    assert (await shared.step(items=1, tokens=1)).items in (0, 1)
    permit = await shared.admitted("batch")
    assert (await shared.step(Ended(permit, "ok", beyond=500), items=1)).reason in ("tokens", "share")
    record = shared.providers.keys.of_provider(NAME)[0]
    beyond = await shared.providers._connection.command("HMGET", record, "next_token", "next_item_token")
    chats, items = (float(at) / 1000 - time.time() for at in beyond)
    assert chats == pytest.approx(0.5, abs=0.15)
    assert items == pytest.approx(1.0, abs=0.15)


FULL = {
    "requests": Limit(requests_per_minute=60 * 200),
    "tokens": Limit(tokens_per_minute=60 * 20_000),
    "concurrency": Limit(concurrency=4),
}


@pytest.mark.parametrize("what", FULL)
@pytest.mark.parametrize("floor", [0.0, 0.1])
async def test_chats_that_fill_a_limit_leave_items_a_little(
    client: TurnClient, what: str, floor: float
) -> None:
    both = Process(providers(client, batch_floor=floor), "both", FULL[what])
    served = {"chat": 0, "batch": 0}
    ended: list[Ended] = []
    while sum(served.values()) < 150:
        granted = await both.step(*ended, chats=40, items=4, tokens=100)
        ended = [Ended(both.permit(index=index), "ok") for index in range(1, granted.chats + 1)]
        ended += [Ended(both.permit("batch", index), "ok") for index in range(1, granted.items + 1)]
        served["chat"] += granted.chats
        served["batch"] += granted.items
    assert served["batch"] / sum(served.values()) == pytest.approx(floor, abs=0.06)


async def test_an_item_that_is_due_is_let_in_from_another_process(client: TurnClient) -> None:
    """Chats of one process leave a place free for it, though they would take all."""
    leaves = providers(client, batch_floor=0.5)
    chats, batch = (Process(leaves, name, Limit(concurrency=2)) for name in ("chats", "batch"))
    ended: list[Ended] = []
    for _ in range(40):
        granted = await chats.step(*ended, chats=3)
        if (await batch.step(items=1)).items:
            return
        ended = [Ended(chats.permit(index=index), "ok") for index in range(1, granted.chats + 1)]
    pytest.fail("no item was let in")


async def test_news_are_published_once(client: TurnClient, one: Process) -> None:
    async with client._reader._listener.subscribe(one.providers.keys.health()) as inbox:
        await one.ends("failed")
        await one.ends("failed")
        await one.step(chats=1)
        await one.step(Ended(one.permit(), "ok"))
        async with asyncio.timeout(5):
            assert [await inbox.get(), await inbox.get()] == [f"{NAME} 0".encode(), f"{NAME} 1".encode()]
        assert inbox.empty()


async def test_a_reset_forgets_all_that_is_held_against_a_model(one: Process) -> None:
    await one.ends("failed", FAILURES)
    await one.ends("limited", retry_after=60)
    await one.providers.reset(NAME)
    assert await one.providers.unwell() == set()
    assert (await one.step(chats=2)).well
    with pytest.raises(NotFound, match="nothing is known of model 'x/y'"):
        await one.providers.reset("x/y")


async def test_what_is_known_of_a_model(one: Process) -> None:
    one.limit = Limit(requests_per_minute=60, concurrency=4)
    assert await one.providers.all() == []
    await one.step(Ended("", "overloaded", retry_after=60), chats=1)
    (health,) = await one.providers.all()
    assert (health.name, health.circuit, health.failures) == (NAME, "closed", 1)
    assert health.cooling_until == pytest.approx(time.time() + 60, abs=5)
    assert (health.requests_per_minute, health.tokens_per_minute, health.concurrency) == (60, None, 4)
