"""A batch whose items continue conversations, on two real workers, one of which is killed on the way."""

from __future__ import annotations

from typing import Final

import pytest

from aiforge.testing import FakeProvider, Gate, Reply
from tests.support.processes import Start
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import BatchItem, BatchRequest, BatchState

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]
CONVERSATIONS: Final = 6
LINES: Final = 5
"""Of each conversation."""


async def test_each_conversation_has_its_lines_in_order_and_once(
    client: TurnClient, worker_process: Start, provider: FakeProvider
) -> None:
    workers = [worker_process(lease_seconds="1.5", concurrency="3") for _ in range(2)]
    lines = [(f"user-{number}", line) for line in range(LINES) for number in range(CONVERSATIONS)]
    # Each conversation stops at its third line until a worker is gone.
    for number in range(CONVERSATIONS):
        provider.when(f"user-{number} line 2", Reply(chunks=["Half ", Gate("killed"), "more"]))
    items = [BatchItem(message=f"{name} line {line}", conversation=name) for name, line in lines]
    batch = await client.submit_batch(BatchRequest(items=items))

    def all_slots_wait() -> bool:
        return sum("line 2" in call.question for call in provider.calls) >= CONVERSATIONS

    await provider.wait_until_async(all_slots_wait, 60)
    workers[0].kill()
    provider.open("killed")

    async def over() -> bool:
        return (await client.batch(batch.batch_id)).state is BatchState.COMPLETED

    await eventually(over, 90)
    done = await client.batch(batch.batch_id)
    assert (done.completed, done.failed) == (len(items), 0)
    for number in range(CONVERSATIONS):
        messages = await client.messages(f"user-{number}")
        assert [message.role for message in messages] == ["user", "assistant"] * LINES
        said = [message.content for message in messages if message.role == "user"]
        assert said == [f"user-{number} line {line}" for line in range(LINES)]
    repeated = len(provider.calls) - len(items)
    assert 1 <= repeated <= 3, "what the killed worker had under way was asked again, nothing else"
    totals = (await client.stats()).totals.values()
    assert done.cost == sum(sums.get(name, 0) for sums in totals for name in ("usd", "lost:usd"))
