"""Writes a data folder as a version leaves it, for tests of the versions that come after.

`python -m tests.support.old_data tests/integration/data/<version>` is run once, with the version that is
released; what it writes is kept: `appendonlydir` of the embedded server, and `written.json`, which says what
is in it. Nothing in it expires within 20 years, but for the usage by day.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import redis

from aiforge.testing import FakeProvider, Reply, ToolCall
from tests.support.processes import Service
from tests.support.runners import LocalWorker
from tests.support.turns import SUSPECT_AFTER, answered, claim, crash, die, submit
from tests.support.waiting import eventually, wait_until
from worker.contract.client import TurnClient
from worker.contract.schemas import BatchItem, BatchRequest, ConversationSettings, TurnRequest, TurnState
from worker.contract.settings import ContractSettings

YEARS: Final = 20 * 365 * 86_400.0
TOOLS: Final = "tests.support.till:tools"
ITEMS: Final = 4


@contextmanager
def embedded(data: Path, folder: Path) -> Iterator[str]:
    """The embedded server on a data folder while somebody uses it; yields its URL."""
    data.mkdir(parents=True, exist_ok=True)
    user = os.open(data / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(user, fcntl.LOCK_SH)
    service = Service("worker.embedded", folder, {"AIFORGE_DATA_DIR": str(data)})
    try:
        yield str(service.ready()["redis_url"])
    finally:
        os.close(user)
        service.terminate()


def settings(url: str) -> ContractSettings:
    return ContractSettings(
        redis_url=url,
        turn_ttl_seconds=YEARS,
        conversation_ttl_seconds=0,
        action_timeout_seconds=YEARS,
        batch_ttl_seconds=YEARS,
    )


async def write(url: str, provider: FakeProvider) -> dict[str, Any]:
    """One of everything; returns what has to be known of it."""
    async with await TurnClient.connect(settings(url)) as client:
        written = {
            "finished": await _finished(client),
            "line": await _line(client),
            "dead": await _dead(client),
            "scheduled": await _scheduled(client),
        }
        async with LocalWorker(client, provider, name="old", TOOLS=TOOLS) as worker:
            written["paused"] = await _paused(client, worker, provider)
            written["batch"] = await _batch(client, worker)
        totals = (await client.stats()).totals
        written["usd"] = str(sum(sums.get("usd", 0) for sums in totals.values()))
        return written


async def _finished(client: TurnClient) -> str:
    given = ConversationSettings(system_prompt="Be brief.", memory_k=6, metadata={"shop": "A1"})
    await client.create_conversation(given, conversation_id="finished")
    await answered(client, "Are you open?", "Until five.", conversation_id="finished")
    return (await answered(client, "And on Sunday?", "No.", conversation_id="finished")).turn_id


async def _line(client: TurnClient) -> list[str]:
    """A turn whose worker is gone after two tokens, and two that wait behind it."""
    places = [await submit(client, f"Question {number}?", conversation_id="line") for number in range(3)]
    await (await claim(client.turns, places[0])).tokens("Half ", "an ")
    return [place.turn_id for place in places]


async def _dead(client: TurnClient) -> str:
    place = await submit(client, "Poison", conversation_id="dead")
    for _ in range(SUSPECT_AFTER):
        await crash(client.turns, await claim(client.turns, place))
    await die(client.turns, await claim(client.turns, place))
    return place.turn_id


async def _scheduled(client: TurnClient) -> str:
    return (await client.submit(TurnRequest(message="Later", run_after=time.time() + 1))).turn_id


async def _paused(client: TurnClient, worker: LocalWorker, provider: FakeProvider) -> str:
    provider.push(Reply(tool_calls=[ToolCall("refund", {"order": "A1"})]))
    turn = await client.submit(TurnRequest(message="Refund A1", tools=["refund"]), conversation_id="paused")
    await worker.turns.run(turn.turn_id)
    assert (await client.turn(turn.turn_id)).state is TurnState.REQUIRES_ACTION
    return turn.turn_id


async def _batch(client: TurnClient, worker: LocalWorker) -> str:
    """One of its slices is done."""
    items = [BatchItem(message=f"Item {number}?", id=str(number)) for number in range(ITEMS)]
    batch_id = (await client.submit_batch(BatchRequest(items=items))).batch_id
    await worker.slices.run(batch_id)

    async def begun() -> bool:
        return 0 < (await client.batch(batch_id)).completed < ITEMS

    await eventually(begun)
    return batch_id


def main(target: Path) -> None:
    os.environ["AIFORGE_TOOLS"] = TOOLS
    with tempfile.TemporaryDirectory() as folder, FakeProvider(tokens=3) as provider:
        data = Path(folder, "data")
        with embedded(data, Path(folder, "embedded")) as url:
            written = asyncio.run(write(url, provider))
            with redis.Redis.from_url(url) as server:
                server.bgrewriteaof()
                wait_until(lambda: not server.info("persistence")["aof_rewrite_in_progress"])
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(data / "redis" / "appendonlydir", target / "appendonlydir")
    (target / "written.json").write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
