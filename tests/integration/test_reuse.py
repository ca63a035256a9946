"""Two batches with the same line on two real workers, one of which is killed while it asks."""

from __future__ import annotations

import pytest

from aiforge.testing import FakeProvider, Gate, Reply
from tests.support.processes import Start
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import BatchItem, BatchRequest, BatchState

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]


async def test_when_the_worker_that_asks_dies_the_waiting_one_asks(
    client: TurnClient, worker_process: Start, provider: FakeProvider
) -> None:
    provider.when("Open?", Reply(chunks=[Gate("never"), "x"]), times=1)
    request = BatchRequest(items=[BatchItem(message="Open?")], cache_ttl=600)
    asking = worker_process(lease_seconds="1.5", concurrency="1")
    first = await client.submit_batch(request)
    await provider.wait_until_async(lambda: len(provider.calls) == 1, 100)
    second = await client.submit_batch(request)
    worker_process(lease_seconds="1.5", concurrency="1")

    async def waits() -> bool:
        return (await client.batch(second.batch_id)).started_at is not None

    await eventually(waits, 100)
    assert len(provider.calls) == 1
    asking.kill()

    async def over() -> bool:
        states = {(await client.batch(batch.batch_id)).state for batch in (first, second)}
        return states == {BatchState.COMPLETED}

    await eventually(over, 100)
    ended = [await client.batch(batch.batch_id) for batch in (first, second)]
    assert [batch.completed for batch in ended] == [1, 1]
    assert (len(provider.calls), sum(batch.saved_calls for batch in ended)) == (2, 1)
    made = [call.outcome for batch in ended for call in await client.turns.calls(batch.batch_id)]
    assert sorted(made) == ["lost", "ok"]
