"""What is added to the library works in a worker too: a provider of one's own, tools by a setting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aiforge.testing import FakeProvider, Reply, ToolCall
from tests.support.processes import Start
from tests.support.turns import Connect
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.errors import InvalidInput
from worker.contract.schemas import BatchItem, BatchRequest, TurnRequest

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


async def test_what_runs_in_a_worker_sees_the_turn_that_it_works_for(
    client: TurnClient, worker_process: Start
) -> None:
    worker_process(provider="tests.support.house:herald")
    turn = await client.submit(
        TurnRequest(message="Hi", metadata={"tenant": "acme"}), conversation_id="user-42"
    )
    seen = (await client.wait(turn.turn_id, 30)).answer
    assert json.loads(seen or "") == ["Hi", "user-42", turn.turn_id, {"tenant": "acme"}]
    parts = [{"type": "text", "text": "in"}, {"type": "text", "text": "parts"}]
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message=parts)], metadata={"a": "b"}))
    done = await eventually(lambda: client.results(batch.batch_id))
    item = f"{batch.batch_id}.0"
    assert json.loads(done[0].answer or "") == ["in\nparts", item, item, {"a": "b"}]


async def test_a_setting_offers_more_tools_to_the_service(
    connect: Connect,
    worker_process: Start,
    provider: FakeProvider,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Switched on for whoever submits and for the worker; off, a request cannot name them."""
    request = TurnRequest(message="What is in the note?", tools=["read_file"])
    with pytest.raises(InvalidInput, match="unknown tool 'read_file'"):
        await (await connect()).submit(request)
    monkeypatch.setenv("AIFORGE_FILE_TOOLS", "true")
    (tmp_path / "note.md").write_text("the tide comes at six")
    provider.push(Reply(tool_calls=[ToolCall("read_file", {"path": "note.md"})]), "At six.")
    worker_process(file_tools="true", workspace=str(tmp_path))
    client = await connect()
    turn = await client.submit(request)
    assert (await client.wait(turn.turn_id, 30)).answer == "At six."
    assert provider.calls[-1].messages[-1]["content"] == "the tide comes at six"
