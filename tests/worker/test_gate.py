"""The gate in front of provider calls: two workers, one provider, and what they cost Redis."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from aiforge.core import completions
from aiforge.core.deltas import CallParams
from aiforge.core.gate import Gate as ModelGate
from aiforge.core.line_bodies import CHAT
from aiforge.core.providers import create_model
from aiforge.core.setting_types import Limit
from aiforge.core.types import (
    AIForgeError,
    ProviderCall,
    ProviderError,
    RateLimitError,
    RequestRefusedError,
    StreamCutError,
    UnavailableError,
    Usage,
)
from aiforge.modules.chat.calls import Calls, Request
from aiforge.modules.chat.summary import summarize
from aiforge.testing import FakeProvider, Gate, Reply, failure, rate_limited
from aiforge.testing.script import RetryForm
from tests.aiforge.chat.support import ListRecorder
from tests.support.gates import DOWN, MODEL, Side, Sides
from tests.support.runners import LocalWorker, library
from tests.support.turns import Connect, state, submit
from tests.support.waiting import eventually
from worker import metrics
from worker.calls import gate
from worker.contract.calls.providers import FAILURES, Granted
from worker.contract.schemas import BatchItem, BatchRequest, BatchState, TurnState

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sides(connect: Connect) -> AsyncIterator[Sides]:
    async with contextlib.AsyncExitStack() as stack:
        yield Sides(connect, stack)


async def begun(side: Side, calls: int, *, batch: bool = False) -> list[float]:
    """When so many calls at once were let in, each of them over at once."""

    async def call() -> float:
        place = await side.enter(batch=batch)
        place.leave(ok=True, usage=Usage(5, 5))
        return time.monotonic()

    return await asyncio.gather(*(call() for _ in range(calls)))


async def test_a_model_that_is_well_and_free_asks_nobody(sides: Sides) -> None:
    one = await sides()
    for place in [await one.enter() for _ in range(50)]:
        assert not place.leave(ok=True, usage=Usage(1, 1))
    await one.gate.settle()
    assert await one.providers.all() == []


async def test_a_rate_holds_over_two_workers_with_64_slots(sides: Sides) -> None:
    limit = Limit(requests_per_minute=60 * 40)
    one, two = await sides(limit), await sides(limit)
    sets = await asyncio.gather(begun(one, 32), begun(two, 32))
    times = sorted(at for times in sets for at in times)
    within = [sum(start <= at < start + 1.0 for at in times) for start in times]
    assert max(within) <= 40 * 1.2


async def test_places_are_asked_for_together(sides: Sides) -> None:
    one = await sides(Limit(concurrency=64))
    steps = 0
    ask = one.providers.step

    async def counted(*arguments: object) -> object:
        nonlocal steps
        steps += 1
        return await ask(*arguments)  # type: ignore[arg-type]  # passed through

    one.providers.step = counted  # type: ignore[method-assign, assignment]  # counted
    await begun(one, 64)
    assert steps <= 64 / 4


async def test_concurrency_holds_and_a_killed_worker_leaks_no_place(sides: Sides) -> None:
    one, two = await sides(Limit(concurrency=2), permit=0.6), await sides(Limit(concurrency=2), permit=0.6)
    await one.enter()
    kept = await two.enter()
    waiting = two.start()
    assert not (await asyncio.wait([waiting], timeout=0.3))[0]
    one.die()
    place = await asyncio.wait_for(waiting, 10)
    (health,) = await two.providers.all()
    assert health.chats_in_flight == 2
    for over in (kept, place):
        over.leave(ok=True)


async def test_a_call_that_gives_up_waiting_leaves_at_once_and_no_place_is_lost(sides: Sides) -> None:
    one = await sides(Limit(concurrency=1))
    held = await one.enter()
    waiting = [one.start() for _ in range(5)]
    await eventually(one.gate.held)
    for task in waiting[:4]:
        task.cancel()
    assert all(
        isinstance(end, asyncio.CancelledError)
        for end in await asyncio.gather(*waiting[:4], return_exceptions=True)
    )
    held.leave(ok=True)
    (await asyncio.wait_for(waiting[4], 5)).leave(ok=True)
    await one.gate.settle()
    (health,) = await one.providers.all()
    assert health.chats_in_flight == 0


def sample(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(f"aiforge_{name}", labels) or 0.0


async def test_what_waits_and_what_is_not_well_is_counted(sides: Sides) -> None:
    one = await sides(Limit(concurrency=1))
    place = await one.enter()
    holds = sample("provider_holds_total", reason="concurrency")
    waits = sample("provider_wait_seconds_count", lane="batch")
    waiting = one.start(batch=True)
    await eventually(lambda: sample("provider_holds_total", reason="concurrency") > holds)
    place.leave(ok=True)
    (await asyncio.wait_for(waiting, 10)).leave(ok=False, error=DOWN)
    assert sample("provider_wait_seconds_count", lane="batch") == waits + 1
    await eventually(lambda: sample("providers_unwell") == 1)


async def test_news_that_a_model_is_well_wake_who_waits(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "LONGEST_SECONDS", 60.0)
    one, two = await sides(pause=25.0), await sides(pause=25.0)
    await one.fail(times=FAILURES)
    await eventually(lambda: not two.gate._model("openai", MODEL).well)
    waiting = asyncio.create_task(two.enter(time_left=60))
    await eventually(lambda: two.gate._model("openai", MODEL)._reason)
    await one.providers.reset(f"openai/{MODEL}")
    (await asyncio.wait_for(waiting, 15)).leave(ok=True)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_cools_the_model_for_the_other_worker(sides: Sides, status: int) -> None:
    one, two = await sides(), await sides()
    error = (RateLimitError if status == 429 else UnavailableError)("no", status=status, retry_after=0.5)
    place = await one.enter()
    began = time.monotonic()
    assert place.leave(ok=False, error=error)
    await eventually(lambda: not two.gate._model("openai", MODEL).free)
    (await two.enter()).leave(ok=True)
    assert time.monotonic() - began >= 0.5


async def test_a_pause_beyond_the_deadline_is_refused_at_once(sides: Sides) -> None:
    one = await sides()
    await one.fail(RateLimitError("no", status=429, retry_after=60))
    with pytest.raises(RateLimitError, match=r"openai/gpt-4o-mini takes no calls for 60 s") as refused:
        await one.enter(time_left=5)
    assert refused.value.retry_after == pytest.approx(60, abs=1)


async def test_a_ramp_follows_and_ends_in_a_model_that_is_free_again(sides: Sides) -> None:
    one = await sides(Limit(requests_per_minute=60 * 100))
    await one.fail(RateLimitError("no", status=429, retry_after=0.1), times=8)
    await one.gate.settle()
    times = await begun(one, 40)
    assert max(times) - min(times) > 40 / 100 * 1.2
    (health,) = await one.providers.all()
    assert 0.5 < health.pace <= 1


@pytest.mark.parametrize("ends", ["well", "badly"])
async def test_an_open_circuit_has_one_probe_among_two_workers(sides: Sides, ends: str) -> None:
    one, two = await sides(), await sides()
    await one.fail(times=FAILURES)
    await eventually(lambda: not two.gate._model("openai", MODEL).free)
    waiting = {side.start() for side in (one, two) for _ in range(10)}
    probes, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    more, _ = await asyncio.wait(rest, timeout=0.5)
    assert (len(probes), len(more)) == (1, 0)
    probe = probes.pop().result()
    if ends == "badly":
        probe.leave(ok=False, error=DOWN)
        probes, rest = await asyncio.wait(rest, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        assert len(probes) == 1
        probe = probes.pop().result()
    probe.leave(ok=True)
    for task in asyncio.as_completed(rest, timeout=20):
        (await task).leave(ok=True)


async def test_a_turn_that_cannot_outlast_an_open_circuit_is_told(sides: Sides) -> None:
    one = await sides(pause=60)
    await one.fail(times=FAILURES)
    with pytest.raises(UnavailableError, match="has failed too often; it is tried again in 60 s"):
        await one.enter(time_left=5)


async def test_what_a_request_does_wrong_opens_no_circuit(sides: Sides) -> None:
    one = await sides()
    await one.fail(RequestRefusedError("bad", status=400), FAILURES * 3)
    await one.fail(RateLimitError("no money", status=429, retryable=False), FAILURES * 3)
    assert await one.providers.all() == []
    await one.fail(StreamCutError("cut"), FAILURES)
    await one.gate.settle()
    assert (await one.providers.all())[0].circuit == "open"


async def test_a_probe_that_meets_no_trusted_connection_closes_no_circuit(sides: Sides) -> None:
    """Nothing is repeated then; but nobody has answered either."""
    one = await sides()
    await one.fail(times=FAILURES)
    await one.fail(UnavailableError("no trusted connection", retryable=False))
    await one.gate.settle()
    (health,) = await one.providers.all()
    assert (health.circuit, health.failures) == ("open", FAILURES + 1)


async def test_chats_go_before_items_of_another_worker(sides: Sides) -> None:
    limit = Limit(requests_per_minute=60 * 20)
    one, two = await sides(limit), await sides(limit)
    items = asyncio.create_task(begun(one, 60, batch=True))
    await eventually(lambda: one.gate.held() or not one.gate._model("openai", MODEL).idle)
    chats = await begun(two, 10)
    assert not items.done()
    between = [at for at in await items if min(chats) < at < max(chats)]
    assert len(between) <= len(chats) / 2


@pytest.mark.parametrize("form", ["seconds", "ms", "both", "date", "none"])
async def test_turns_of_two_workers_obey_each_form_of_retry_after(
    sides: Sides, provider: FakeProvider, form: RetryForm
) -> None:
    """Nobody calls early, whichever worker got the 429; what is in flight may meet it, too."""
    pause = 1.0 if form in ("seconds", "date") else 0.4
    provider.push(lambda _call: rate_limited(2 * pause if form == "date" else pause, form=form))
    one, two = await sides(provider=provider), await sides(provider=provider)
    places = [await submit(side.client) for side in (one, two, two)]
    async with (
        LocalWorker(one.client, provider, gate=one.gate) as first,
        LocalWorker(two.client, provider, gate=two.gate) as second,
    ):
        refused = first.start(places[0].turn_id)
        name = next(iter(await eventually(two.providers.unwell)))
        await eventually(lambda: name in two.gate._unwell)
        await asyncio.wait_for(
            asyncio.gather(refused, *(second.start(place.turn_id) for place in places[1:])), 30
        )
    assert [await state(one.client, place) for place in places] == [TurnState.COMPLETED] * 3
    assert [call.status for call in provider.calls] == [429, 200, 200, 200]
    again = [call.arrived - provider.calls[0].arrived for call in provider.calls][1:]
    assert min(again) >= (pause if form != "none" else 0.5) - 0.01


class Holding:
    """A gate that says it holds everything back, and holds nothing."""

    def __init__(self) -> None:
        self.left: list[tuple[bool, str | None]] = []

    async def enter(self, provider: str, model: str, *, tokens: object, time_left: float) -> Holding:
        return self

    def leave(self, *, ok: bool, error: ProviderError | None = None, usage: Usage | None = None) -> bool:
        self.left.append((ok, error.code if error else None))
        return True


def calls_of(provider: FakeProvider, gate: ModelGate, recorder: ListRecorder, *, max_retries: int) -> Calls:
    return Calls(
        model=create_model(library(provider)),
        provider="openai",
        model_name=MODEL,
        params=CallParams(),
        max_retries=max_retries,
        deadline=asyncio.get_running_loop().time() + 60,
        emit=lambda _event: None,
        recorder=recorder,
        gate=gate,
    )


async def test_a_turn_does_not_wait_for_what_the_gate_waits_for(provider: FakeProvider) -> None:
    provider.push(rate_limited(15, form="ms"))
    gate, began = Holding(), time.monotonic()
    calls = calls_of(provider, gate, ListRecorder(), max_retries=1)
    await calls.ask(Request(messages=[{"role": "user", "content": "Hi"}]))
    assert time.monotonic() - began < 10
    assert gate.left == [(False, "rate_limited"), (True, None)]


class Refusing(ListRecorder):
    """Lets one call begin."""

    async def intend(self, call: ProviderCall, most: Callable[[], Usage]) -> None:
        await super().intend(call, most)
        if len(self.intended) > 1:
            raise AIForgeError("no room in a budget")


async def test_a_call_that_was_not_made_takes_no_tokens(sides: Sides, provider: FakeProvider) -> None:
    """Nor those of the call before it."""
    one = await sides(Limit(tokens_per_minute=600_000, burst_seconds=60), provider)
    provider.push(Reply(text="Hello", usage=Usage(100_000, 0)))
    calls = calls_of(provider, one.gate.chats, Refusing(), max_retries=0)
    await calls.ask(Request(messages=[{"role": "user", "content": "Hi"}]))
    with pytest.raises(AIForgeError, match="no room"):
        await calls.ask(Request(messages=[{"role": "user", "content": "Hi"}]))
    await one.gate.settle()
    (health,) = await one.providers.all()
    record = one.providers.keys.of_provider(health.name)[0]
    (ahead,) = await one.client.connection.command("HMGET", record, "next_token")
    assert float(ahead) / 1000 - provider.calls[0].arrived == pytest.approx(10, abs=4)


async def test_a_turn_that_is_stopped_while_it_waits_made_no_call(
    sides: Sides, provider: FakeProvider
) -> None:
    one = await sides(Limit(concurrency=1), provider)
    held = await one.enter()
    place = await submit(one.client)
    async with LocalWorker(one.client, provider, gate=one.gate) as worker:
        running = worker.start(place.turn_id)
        await eventually(lambda: len(worker.leases) == 1)
        await one.client.cancel(place.turn_id)
        worker.leases.stop(place.turn_id, "cancelled")
        await asyncio.wait_for(running, 5)
    held.leave(ok=True)
    assert await state(one.client, place) is TurnState.CANCELLED
    assert not provider.calls
    ledger = one.client.turns.keys.ledger(place.turn_id)
    assert not await one.client.connection.command("HGETALL", ledger)


async def test_a_turn_asks_once_more_after_503_and_stops_at_the_circuit(
    sides: Sides, provider: FakeProvider
) -> None:
    one = await sides(provider=provider, pause=60)
    provider.push(*[failure(500)] * (FAILURES + 3))
    places = [await submit(one.client) for _ in range(FAILURES)]
    async with LocalWorker(one.client, provider, gate=one.gate, MAX_RETRIES=0, TURN_TIMEOUT=20) as worker:
        for place in places:
            await worker.turns.run(place.turn_id)
        last = await submit(one.client)
        await worker.turns.run(last.turn_id)
    turn = await one.client.turn(last.turn_id)
    assert turn.error is not None
    assert (turn.error.code, turn.error.retryable) == ("provider_unavailable", True)
    assert len(provider.calls) == FAILURES


async def test_items_of_a_batch_wait_for_chats(sides: Sides, provider: FakeProvider) -> None:
    one = await sides(Limit(concurrency=1), provider)
    provider.push(Reply(chunks=[Gate("first"), "done"]))
    request = BatchRequest(items=[BatchItem(message=f"item {number}") for number in range(3)])
    batch = await one.client.submit_batch(request)
    async with LocalWorker(one.client, provider, gate=one.gate) as worker:
        running = worker.start_slice(batch.batch_id)
        await provider.wait_until_async(lambda: provider.calls.running == 1)
        place = await submit(one.client, "a chat")
        chat = worker.start(place.turn_id)
        await eventually(lambda: len(one.gate._model("openai", MODEL)._waiting["chat"]))
        provider.open("first")
        await asyncio.wait_for(chat, 10)
        await asyncio.wait_for(running, 10)

        async def over() -> bool:
            await worker.slices.run(batch.batch_id)
            return (await one.client.batch(batch.batch_id)).state is BatchState.COMPLETED

        await eventually(over)
    assert [call.question for call in provider.calls][:2] == ["item 0", "a chat"]


async def test_a_line_of_a_file_waits_for_its_place(sides: Sides, provider: FakeProvider) -> None:
    one = await sides(Limit(concurrency=1, tokens_per_minute=600_000), provider)
    provider.push(rate_limited(0.4, form="ms"), "Hello")
    held = await one.enter()
    body = b'{"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hi"}]}'
    request = completions.Request(
        CHAT, body, create_model(library(provider)), "openai", MODEL, 1, 20.0, {}, one.gate.items
    )
    asking = asyncio.create_task(completions.answer(request, ListRecorder()))
    assert not (await asyncio.wait([asking], timeout=0.2))[0]
    assert not provider.calls
    held.leave(ok=True)
    assert (await asyncio.wait_for(asking, 20)).status == 200
    refused, answered = provider.calls
    assert answered.arrived - refused.arrived >= 0.4
    await one.gate.settle()
    (health,) = await one.providers.all()
    assert health.items_in_flight == 0


async def test_a_summary_waits_for_its_place(sides: Sides, provider: FakeProvider) -> None:
    one = await sides(Limit(concurrency=1), provider)
    held = await one.enter()
    asking = asyncio.create_task(
        summarize(
            [{"role": "user", "content": "Hi"}],
            None,
            model=create_model(library(provider)),
            provider="openai",
            model_name=MODEL,
            emit=lambda _event: None,
            recorder=ListRecorder(),
            gate=one.gate.chats,
        )
    )
    assert not (await asyncio.wait([asking], timeout=0.2))[0]
    assert not provider.calls
    held.leave(ok=True)
    assert await asyncio.wait_for(asking, 20)


async def test_a_place_that_comes_too_late_is_given_back(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await sides(Limit(concurrency=1))
    ask = one.providers.step

    async def late(*arguments: Any) -> Granted:
        granted = await ask(*arguments)
        asyncio.get_running_loop().call_soon(task.cancel)
        return granted

    with monkeypatch.context() as patched:
        patched.setattr(one.providers, "step", late)
        task = one.start()
        with pytest.raises(asyncio.CancelledError):
            await task
    (await asyncio.wait_for(one.enter(), 8)).leave(ok=True)
