"""A provider named by where it is, in a worker."""

from __future__ import annotations

import pytest

from tests.support.processes import Start
from worker.contract.client import TurnClient
from worker.contract.schemas import TurnRequest

pytestmark = pytest.mark.anyio


async def test_a_worker_answers_with_a_provider_named_by_its_path(
    client: TurnClient, worker_process: Start
) -> None:
    worker_process(provider="tests.support.house:gateway")
    plain = await client.submit(TurnRequest(message="Hi"))
    named = await client.submit(TurnRequest(message="Hi", model="large"))
    assert (await client.wait(plain.turn_id, 30)).answer == "default of the house"
    done = await client.wait(named.turn_id, 30)
    assert (done.answer, done.cost) == ("large of the house", None)
