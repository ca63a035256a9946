"""What earlier versions have left in their data folders is read and taken to its end by this one."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from aiforge.core.events import Reset, Started
from aiforge.testing import FakeProvider
from tests.support.old_data import ITEMS, TOOLS, YEARS, embedded, settings
from tests.support.processes import Service
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.schemas import BatchState, TurnState

pytestmark = pytest.mark.anyio
WRITTEN: Final = sorted(path.parent for path in Path(__file__).parent.glob("data/*/written.json"))


@pytest.fixture(params=WRITTEN, ids=lambda folder: str(folder.name))
def version(request: pytest.FixtureRequest) -> Path:
    """The folder of one version."""
    folder: Path = request.param
    return folder


@pytest.fixture
def written(version: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((version / "written.json").read_text())
    return found


@pytest.fixture
def url(version: Path, tmp_path: Path) -> Iterator[str]:
    """This version's embedded server on a copy of the folder."""
    shutil.copytree(version / "appendonlydir", tmp_path / "data" / "redis" / "appendonlydir")
    with embedded(tmp_path / "data", tmp_path / "embedded") as found:
        yield found


@pytest.fixture
async def client(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TurnClient]:
    monkeypatch.setenv("AIFORGE_TOOLS", TOOLS)
    async with await TurnClient.connect(settings(url)) as connected:
        yield connected


@pytest.fixture
def services(url: str, provider: FakeProvider, tmp_path: Path) -> Iterator[dict[str, Service]]:
    """A worker and an API, once they are ready."""
    (tmp_path / "done.txt").touch()
    told = {
        "redis_url": url,
        "provider": "openai",
        "openai_api_key": "sk-test",
        "openai_base_url": provider.url,
        "tools": TOOLS,
        "workspace": str(tmp_path),
        "turn_ttl_seconds": str(YEARS),
        "metrics_port": "0",
        "api_port": "0",
    }
    environment = {f"AIFORGE_{name.upper()}": value for name, value in told.items()}
    started = {name: Service(name, tmp_path / name, environment) for name in ("worker", "api")}
    try:
        for service in started.values():
            service.ready()
        yield started
    finally:
        for service in started.values():
            service.close()


def test_there_is_something_to_open() -> None:
    assert WRITTEN


async def test_what_was_stored_is_read(client: TurnClient, written: dict[str, Any]) -> None:
    told = [(message.role, message.content) for message in await client.messages("finished")]
    assert told == [
        ("user", "Are you open?"), ("assistant", "Until five."),
        ("user", "And on Sunday?"), ("assistant", "No."),
    ]  # fmt: skip
    conversation = await client.conversation("finished")
    assert (conversation.system_prompt, conversation.memory_k) == ("Be brief.", 6)
    assert conversation.metadata == {"shop": "A1"}
    assert len((await client.export("finished")).messages) == 4
    turn = await client.turn(written["finished"])
    assert (turn.state, turn.answer, turn.attempts) == (TurnState.COMPLETED, "No.", 1)
    assert [event async for _, event in client.events(turn.turn_id)][1] == Started(1)

    assert [letter.turn_id for letter in await client.dead_letters()] == [written["dead"]]
    assert (await client.turn(written["scheduled"])).state is TurnState.SCHEDULED
    line = await client.line("line")
    assert [line.active, *line.waiting] == written["line"]
    totals = (await client.stats()).totals.values()
    assert str(sum(sums.get("usd", 0) for sums in totals)) == written["usd"]


async def test_what_was_begun_is_taken_to_its_end(
    client: TurnClient, services: dict[str, Service], written: dict[str, Any], tmp_path: Path
) -> None:
    async with httpx.AsyncClient(base_url=services["api"].url, trust_env=False, timeout=90) as http:

        async def over(turn_id: str) -> dict[str, Any]:
            turn: dict[str, Any] = (await http.get(f"/v1/turns/{turn_id}", params={"wait": 60})).json()
            return turn

        line = [await over(turn_id) for turn_id in written["line"]]
        scheduled = await over(written["scheduled"])
        asked = (await http.get(f"/v1/turns/{written['paused']}")).json()["question"]
        answer = {"question_id": asked["question_id"], "answer": "approved"}
        (await http.post(f"/v1/turns/{written['paused']}/resume", json=answer)).raise_for_status()
        resumed = await over(written["paused"])
        again = (await http.post(f"/v1/dead/{written['dead']}/requeue")).json()
        requeued = await over(again["turn_id"])

    ended = [*line, scheduled, resumed, requeued]
    assert [turn["state"] for turn in ended] == ["completed"] * len(ended)
    assert [turn["attempts"] for turn in line] == [2, 1, 1]
    assert [turn["finished_at"] for turn in line] == sorted(turn["finished_at"] for turn in line)
    assert Reset(2) in [event async for _, event in client.events(written["line"][0])]
    questions = [message.content for message in await client.messages("line") if message.role == "user"]
    assert questions == ["Question 0?", "Question 1?", "Question 2?"]
    assert (tmp_path / "done.txt").read_text().splitlines() == ["refund A1"]

    async def batch_over() -> bool:
        return (await client.batch(written["batch"])).state is BatchState.COMPLETED

    await eventually(batch_over, 60)
    rows = await client.results(written["batch"])
    assert [(row.id, row.status) for row in rows] == [(str(number), "ok") for number in range(ITEMS)]
