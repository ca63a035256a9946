"""The ledger: one row per provider call, settled or lost once, and totals that add up to the last 1e-12."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest

from aiforge.core.types import ProviderCall, Usage
from tests.support.servers import RedisServer
from tests.support.turns import COST, LOST, USAGE, claim, crash, intended, lost, paid, rows, submit
from worker.contract.client import TurnClient

pytestmark = pytest.mark.anyio


async def totals(client: TurnClient) -> dict[str, Decimal]:
    """Sums of the ledger over all models."""
    found: dict[str, Decimal] = {}
    for (provider, _), sums in (await client.stats()).totals.items():
        assert provider == "openai"
        for name, amount in sums.items():
            found[name] = found.get(name, Decimal(0)) + amount
    return found


def holds(sums: dict[str, Decimal], **expected: Decimal | int | None) -> bool:
    """Whether the sums hold these values; a name's `_` stands for the ledger's `:`."""
    return all(sums[name.replace("_", ":")] == value for name, value in expected.items())


async def outcomes(client: TurnClient, turn_id: str) -> dict[str, str]:
    return {call.call_id: call.outcome for call in await client.turns.calls(turn_id)}


async def test_a_call_is_intended_before_it_is_made(client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client))
    turn_id, second = running.claim.place.turn_id, f"{running.call_id[:-1]}2"
    assert await rows(client.turns, turn_id) == [intended(running.call_id)]
    await client.turns.ledger(
        turn_id, "default", settled=[paid(running.call_id)], intended=[intended(second)]
    )
    assert await outcomes(client, turn_id) == {running.call_id: "ok", second: "intended"}
    await running.answer("Hi", calls=[paid(second)])
    assert await outcomes(client, turn_id) == {running.call_id: "ok", second: "ok"}


async def test_totals_are_exact(client: TurnClient) -> None:
    """A million turns of $0.0000001 are $0.1; here a thousand calls of one odd price."""
    running = await claim(client.turns, await submit(client))
    price = Decimal("0.000000000001")
    calls = [paid(f"call-{number}", cost=price * (number * 7 + 1)) for number in range(1_000)]
    await running.answer("Hi", calls=calls)
    sums = await totals(client)
    assert sums["usd"] == sum((call.cost or 0 for call in calls), Decimal(0))
    assert sums["calls:ok"] == 1_000
    assert holds(sums, input=12_000, output=3_000)


async def test_every_measure_has_its_total(client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client))
    usage = Usage(input_tokens=100, output_tokens=50, cached_tokens=30, reasoning_tokens=20)
    failed = msgspec.structs.replace(intended("b"), outcome="error", error_code="rate_limited")
    stopped = msgspec.structs.replace(
        intended("c"), outcome="aborted", usage=Usage(1, 1, estimated=True), cost=Decimal("0.1")
    )
    calls = [paid(running.call_id, usage=usage, cost=None), failed, stopped]
    await running.answer("Hi", calls=calls)
    assert await totals(client) == {
        "calls:ok": 1, "calls:error": 1, "calls:aborted": 1, "input": 101, "output": 51, "cached": 30,
        "reasoning": 20, "unpriced": 1, "usd": Decimal("0.1"), "estimated": Decimal("0.1"),
    }  # fmt: skip


async def test_a_call_is_counted_once(client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client))
    turn_id, call = running.claim.place.turn_id, paid(running.call_id)
    for _ in range(2):
        await client.turns.ledger(turn_id, "default", settled=[call], intended=[])
    for _ in range(2):
        await running.answer("Hi", calls=[call])
    another = msgspec.structs.replace(call, outcome="error", cost=Decimal(1))
    await client.turns.ledger(turn_id, "default", settled=[another], intended=[intended(call.call_id)])
    assert await rows(client.turns, turn_id) == [call]
    assert (await totals(client))["usd"] == call.cost


async def test_what_a_dead_attempt_left_is_lost(client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client))
    turn_id = running.claim.place.turn_id
    second = f"{running.call_id[:-1]}2"
    await client.turns.ledger(
        turn_id, "default", settled=[paid(running.call_id)], intended=[intended(second)]
    )
    await crash(client.turns, running)
    assert await outcomes(client, turn_id) == {running.call_id: "ok", second: "lost"}
    sums = await totals(client)
    assert holds(sums, calls_ok=1, calls_lost=1)


async def test_each_row_says_which_attempt_made_the_call_and_when(client: TurnClient) -> None:
    """A hand-back is no attempt; the claim's script itself knows the number."""
    place = await submit(client)
    for attempt in (1, 1, 2):
        running = await claim(client.turns, place)
        (row,) = [call for call in await client.turns.calls(place.turn_id) if call.outcome == "intended"]
        assert (row.call_id, row.attempt, running.claim.attempt) == (running.call_id, attempt, attempt)
        assert row.at is not None
        assert 0 <= row.at / 1000 - (await client.turn(place.turn_id)).created_at < 60
        if running.claim.fence == 1:
            await running.hand_back()
        else:
            await crash(client.turns, running)


async def test_a_dead_attempt_counts_with_its_estimate_until_its_worker_tells(client: TurnClient) -> None:
    """The turn, the totals, the usage: each is the sum of the rows at any time."""
    late = await claim(client.turns, await submit(client))
    place = late.claim.place
    for _ in range(2):
        await crash(client.turns, late, [lost(late.call_id)])
    current = await claim(client.turns, place)
    assert (await client.turn(place.turn_id)).cost == LOST
    await current.answer("Hi")
    turn, (used,) = await client.turn(place.turn_id), await client.usage(group_by=["model"])
    assert turn.usage is not None
    assert (turn.cost, turn.estimated_cost, turn.usage.estimated) == (COST + LOST, LOST, True)
    assert (used.model, used.calls, used.lost_calls, used.cost, used.estimated_cost) == (
        "m", 2, 1, COST + LOST, LOST,
    )  # fmt: skip
    assert used.input_tokens == turn.usage.input_tokens == 2 * USAGE.input_tokens
    assert holds(await totals(client), usd=COST, lost_usd=LOST, calls_lost=1)

    assert not (await late.answer("late")).accepted
    turn, (used,) = await client.turn(place.turn_id), await client.usage(group_by=["model"])
    assert turn.cost == used.cost == 2 * COST
    assert turn.estimated_cost == used.estimated_cost == 0
    sums = await totals(client)
    assert holds(sums, usd=2 * COST, calls_lost=0, calls_ok=2)
    assert not any(amount for name, amount in sums.items() if name.startswith("lost:"))


async def test_what_nobody_can_tell_of_a_lost_call_is_not_zero(client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client))
    await crash(client.turns, running)
    turn, (used,) = await client.turn(running.claim.place.turn_id), await client.usage(group_by=["model"])
    assert (turn.cost, used.model, used.lost_calls, used.unpriced_calls) == (None, "m", 1, 1)


async def test_a_late_word_on_a_lost_call_is_worth_more(client: TurnClient) -> None:
    """The worker was only slow: its commit is refused, what it spent is known all the same."""
    running = await claim(client.turns, await submit(client))
    turn_id = running.claim.place.turn_id
    await crash(client.turns, running)
    assert (await totals(client))["calls:lost"] == 1
    for _ in range(2):
        assert not (await running.answer("late")).accepted
        assert await rows(client.turns, turn_id) == [paid(running.call_id)]
        sums = await totals(client)
        assert holds(sums, calls_lost=0, calls_ok=1, usd=COST, lost_unpriced=0)


async def test_a_refused_commit_counts_its_calls(client: TurnClient) -> None:
    late = await claim(client.turns, await submit(client))
    await crash(client.turns, late)
    current = await claim(client.turns, late.claim.place)
    assert not (await late.answer("late", calls=[paid(late.call_id), paid("extra")])).accepted
    await current.answer("right")
    calls = await outcomes(client, late.claim.place.turn_id)
    assert calls == {late.call_id: "ok", "extra": "ok", current.call_id: "ok"}
    assert (await totals(client))["calls:ok"] == 3


async def test_a_call_that_was_never_made_has_no_row(client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client))
    place = running.claim.place
    await running.hand_back()
    assert await client.turns.calls(place.turn_id) == []
    again = await claim(client.turns, place)
    await again.answer("Hi", calls=[])
    assert await client.turns.calls(place.turn_id) == []
    assert await totals(client) == {}


async def test_a_call_of_a_superseded_attempt_is_lost_from_the_start(client: TurnClient) -> None:
    """Its worker does not know yet; if it dies, too, nobody will ever say what the call cost."""
    late = await claim(client.turns, await submit(client))
    turn_id = late.claim.place.turn_id
    await crash(client.turns, late)
    current = await claim(client.turns, late.claim.place)
    second = f"{turn_id}.{late.claim.token}.2"
    await client.turns.ledger(turn_id, "default", settled=[paid(late.call_id)], intended=[intended(second)])
    assert (await outcomes(client, turn_id))[second] == "lost"
    await current.answer("Hi")
    third = f"{turn_id}.{late.claim.token}.3"
    await client.turns.ledger(turn_id, "default", settled=[paid(second)], intended=[intended(third)])
    assert await outcomes(client, turn_id) == {
        late.call_id: "ok", current.call_id: "ok", second: "ok", third: "lost",
    }  # fmt: skip
    assert holds(await totals(client), calls_ok=3, calls_lost=1)


async def test_a_late_call_does_not_outlive_its_turn(client: TurnClient, server: RedisServer) -> None:
    running = await claim(client.turns, await submit(client))
    turn_id = running.claim.place.turn_id
    await running.answer("Hi")
    ledger = client.turns.keys.ledger(turn_id)
    for gone in ([ledger], [ledger, client.turns.keys.turn(turn_id), client.turns.keys.log(turn_id)]):
        server.ask("DEL", *gone)
        await client.turns.ledger(turn_id, "default", settled=[paid("late")], intended=[])
        assert 0 < server.ask("PTTL", ledger) <= 86_400_000


async def test_a_hand_back_settles_what_was_spent(client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client))
    place = running.claim.place
    stopped = msgspec.structs.replace(paid(running.call_id), outcome="aborted")
    assert await client.turns.requeue(place, running.claim.fence, calls=[stopped]) == ("queued", None)
    assert await rows(client.turns, place.turn_id) == [stopped]
    assert (await totals(client))["usd"] == stopped.cost


async def test_a_model_that_never_answered_has_no_totals(client: TurnClient) -> None:
    """Anyone can ask for a model of any name."""
    running = await claim(client.turns, await submit(client))
    invented = msgspec.structs.replace(intended("a"), model="invented", outcome="error")
    await running.answer("Hi", calls=[invented, paid("b")])
    assert set((await client.stats()).totals) == {("openai", ""), ("openai", "m")}
    lost = await claim(client.turns, await submit(client))
    await crash(client.turns, lost)
    assert set((await client.stats()).totals) == {("openai", ""), ("openai", "m")}


async def test_totals_are_per_model(client: TurnClient) -> None:
    running = await claim(client.turns, await submit(client))
    odd = ProviderCall(
        call_id=running.call_id, purpose="answer", provider="my|own", model="a|b", outcome="ok",
        usage=Usage(1, 2), cost=Decimal("0.5"),
    )  # fmt: skip
    await running.answer("Hi", calls=[odd])
    spent = [sums["usd"] for sums in (await client.stats()).totals.values()]
    assert spent == [Decimal("0.5")]


async def test_a_sum_that_no_number_holds_breaks_no_commit(client: TurnClient) -> None:
    """Whatever a provider or a price says: the answer is stored, each call has its row."""
    huge = Usage(input_tokens=2**62, output_tokens=2**62, cached_tokens=2**62, reasoning_tokens=2**62)
    for number in range(3):
        place = await submit(client, conversation_id="c")
        running = await claim(client.turns, place)
        call = paid(running.call_id, cost=Decimal(9_000_000), usage=huge)
        assert (await running.answer(f"answer {number}", calls=[call])).accepted
        assert (await client.turn(place.turn_id)).answer == f"answer {number}"
        assert await outcomes(client, place.turn_id) == {running.call_id: "ok"}
    assert (await totals(client))["usd"] == Decimal(9_000_000)


async def test_a_call_that_begins_after_its_turn_is_lost_and_lives_no_longer(
    client: TurnClient, server: RedisServer
) -> None:
    """Its claim stands in the record still; but nobody will settle what no commit has told."""
    place = await submit(client, conversation_id="c")
    running = await claim(client.turns, place)
    second, third = (f"{running.call_id[:-1]}{number}" for number in (2, 3))
    await client.turns.ledger(place.turn_id, "default", settled=[], intended=[intended(second)])
    entered = {call.call_id: call.at for call in await client.turns.calls(place.turn_id)}
    assert entered[second] is not None
    await running.answer("Hi", calls=[paid(running.call_id), paid(second)])
    await client.turns.ledger(place.turn_id, "default", settled=[], intended=[intended(third)])
    assert (await outcomes(client, place.turn_id))[third] == "lost"
    assert {call.call_id: call.at for call in await client.turns.calls(place.turn_id)}[second] == entered[
        second
    ]

    await client.erase("c")
    await client.turns.ledger(place.turn_id, "default", settled=[], intended=[intended(third)])
    assert 0 < server.ask("PTTL", client.turns.keys.ledger(place.turn_id)) <= 86_400_000
