"""Two real workers and one provider that allows less than they could ask: rate, refusals, deaths, probes."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx
import pytest

from aiforge.testing import FakeProvider, Gate, Reply, failure, rate_limited
from tests.support.processes import Start
from tests.support.turns import submit
from tests.support.waiting import eventually
from worker.contract.calls.providers import FAILURES, PERMIT_SECONDS
from worker.contract.client import TurnClient
from worker.contract.schemas import TurnState

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

RATE: Final = 20
SHORT: Final[dict[str, Any]] = {"concurrency": "32", "lease_seconds": "2", "model": "gpt-4o-mini"}


def limited(**limit: Any) -> dict[str, Any]:
    return {**SHORT, "limits": json.dumps({"openai/*": limit})}


async def ended(client: TurnClient, turn_ids: list[str]) -> list[TurnState]:
    async def over() -> bool:
        return all([(await client.turn(turn_id)).finished for turn_id in turn_ids])

    await eventually(over, 60)
    return [(await client.turn(turn_id)).state for turn_id in turn_ids]


def within(times: list[float], seconds: float) -> int:
    """The most calls that began within so many seconds."""
    return max(sum(start <= at < start + seconds for at in times) for start in times)


@pytest.mark.soak
async def test_64_slots_keep_to_the_rate_and_obey_a_refusal(
    client: TurnClient, worker_process: Start, provider: FakeProvider
) -> None:
    for _ in range(2):
        worker_process(**limited(requests_per_minute=60 * RATE))
    provider.push(*["ok"] * 20, rate_limited(1.0, form="seconds"))
    turns = [(await submit(client, f"Question {number}")).turn_id for number in range(64)]
    assert set(await ended(client, turns)) == {TurnState.COMPLETED}
    calls = sorted(provider.calls, key=lambda call: call.arrived)
    (refused,) = [call for call in calls if call.status == 429]
    assert len(calls) == 65
    assert within([call.arrived for call in calls], 2.0) <= 2 * RATE * 1.2
    after = [call.arrived for call in calls if call.arrived > refused.arrived + 0.1]
    assert min(after) >= refused.arrived + 1.0
    assert sum(at < min(after) + 1.0 for at in after) <= RATE * 0.75


@pytest.mark.soak
async def test_a_killed_worker_leaks_no_place(
    client: TurnClient, worker_process: Start, provider: FakeProvider
) -> None:
    provider.push(Reply(chunks=["never", Gate("shut"), "said"]))
    first = worker_process(**limited(concurrency=1))
    lost = (await submit(client, "killed")).turn_id
    await provider.wait_until_async(lambda: provider.calls.running == 1)
    first.kill()
    worker_process(**limited(concurrency=1))
    turns = [lost, *[(await submit(client, f"after {number}")).turn_id for number in range(3)]]

    async def over() -> bool:
        return all([(await client.turn(turn_id)).finished for turn_id in turns])

    await eventually(over, PERMIT_SECONDS + 30)
    assert set(await ended(client, turns)) == {TurnState.COMPLETED}


@pytest.mark.soak
async def test_a_broken_provider_gets_one_probe_from_two_workers(
    client: TurnClient, worker_process: Start, api_process: Start, provider: FakeProvider
) -> None:
    for _ in range(2):
        worker_process(**SHORT, max_retries="0")
    provider.push(*[failure(500)] * FAILURES)
    broken = [(await submit(client, f"broken {number}")).turn_id for number in range(FAILURES)]
    assert set(await ended(client, broken)) == {TurnState.FAILED}
    provider.push(Reply(chunks=["probe", Gate("probe"), "."]))
    turns = [(await submit(client, f"waits {number}")).turn_id for number in range(12)]
    await provider.wait_until_async(lambda: len(provider.calls) > FAILURES, 30)
    async with httpx.AsyncClient(base_url=api_process().url, trust_env=False, timeout=30) as http:
        (found,) = (await http.get("/v1/providers")).json()["data"]
    assert (found["circuit"], found["chats_in_flight"]) == ("half_open", 1)
    assert len(provider.calls) == FAILURES + 1
    provider.open("probe")
    assert set(await ended(client, turns)) == {TurnState.COMPLETED}
    assert len(provider.calls) == FAILURES + 12
