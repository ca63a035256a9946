"""Wake-ups at the broker: small, without authority, and never the text of a message."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from tests.support.servers import RedisServer
from tests.support.turns import Connect, submit
from tests.support.waiting import eventually
from worker.broker.transport import wake_up
from worker.contract.client import TurnClient
from worker.contract.queues import TASKS, queue
from worker.contract.schemas import BatchItem, BatchRequest, Caller, Lane
from worker.contract.settings import ContractSettings
from worker.contract.wakeups.knock import Bell, Knocker, message
from worker.contract.wakeups.wake import Waker

pytestmark = pytest.mark.anyio


def waiting(server: RedisServer, namespace: str, lane: Lane) -> list[bytes]:
    """The messages as they lie at the broker."""
    found: list[bytes] = server.ask("LRANGE", f"{namespace}:broker:{queue(namespace, lane)}", 0, -1)
    return found


async def test_a_message_is_small_and_carries_an_id(
    client: TurnClient, server: RedisServer, namespace: str
) -> None:
    secret = "canary " * 10_000
    place = await submit(client.of(Caller("canary-tenant")), secret, conversation_id="canary-conversation")
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message=secret)]))
    await eventually(lambda: waiting(server, namespace, Lane.BATCH))
    for lane, work in ((Lane.CHAT, place.turn_id), (Lane.BATCH, batch.batch_id)):
        (raw,) = waiting(server, namespace, lane)
        assert len(raw) <= 1_229
        assert b"canary" not in raw
        message: dict[str, Any] = json.loads(raw)
        body = base64.b64decode(message["body"])
        arguments, keywords, _ = json.loads(body)
        assert (arguments, keywords) == ([work], {})
        assert len(json.dumps(arguments)) <= 128
        assert message["headers"]["task"] == TASKS[lane]
        assert work not in message["headers"]["argsrepr"]
        assert b"canary" not in body


async def test_depth_counts_what_waits(client: TurnClient) -> None:
    for _ in range(3):
        await submit(client)
    await eventually(lambda: depths(client, {Lane.CHAT: 3, Lane.BATCH: 0}))


async def depths(client: TurnClient, expected: dict[Lane, int]) -> bool:
    return (await client.stats()).depth == expected


@pytest.mark.parametrize("sender", [Waker, Knocker])
async def test_many_wake_ups_at_once(
    sender: type[Waker | Knocker], client: TurnClient, server: RedisServer, namespace: str
) -> None:
    waker = sender(client.settings)
    ids = [f"00{number:020x}" for number in range(1_300)]
    for work in ids:
        waker.wake(work)
    await waker.close()
    sent = [
        json.loads(base64.b64decode(json.loads(raw)["body"]))[0][0]
        for raw in waiting(server, namespace, Lane.CHAT)
    ]
    assert sorted(sent) == ids


async def test_the_lane_of_batches_is_never_longer_than_the_window(
    connect: Connect, server: RedisServer, namespace: str
) -> None:
    client = await connect(batch_window=3)
    bell = Bell(client.settings, asyncio.get_running_loop())
    works = [f"batch_00{number:020x}" for number in range(3)]
    for work in works[:2] * 2:
        bell.wake(work, times=2)
    bell.wake("00" + "a" * 20, times=5)
    await eventually(lambda: depths(client, {Lane.CHAT: 5, Lane.BATCH: 3}))
    server.ask("RPOP", f"{namespace}:broker:{queue(namespace, Lane.BATCH)}")
    bell.wake(works[2], times=9)
    await asyncio.to_thread(bell.wake, works[2])
    await asyncio.sleep(0)
    await bell.close()
    sent = [
        json.loads(base64.b64decode(json.loads(raw)["body"]))[0][0]
        for raw in waiting(server, namespace, Lane.BATCH)
    ]
    assert sent == [works[2], works[1], works[0]]
    assert await depths(client, {Lane.CHAT: 5, Lane.BATCH: 3})


def test_the_transport_reads_the_same_of_both_senders() -> None:
    work = "00" + "a" * 20
    ours = json.loads(message(work, TASKS[Lane.CHAT], "q"))
    celerys = {
        "body": base64.b64encode(json.dumps([[work], {}, {"callbacks": None}]).encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"id": "i", "task": TASKS[Lane.CHAT], "lang": "py", "retries": 0},
        "properties": {**ours["properties"], "delivery_mode": 2, "reply_to": None},
    }
    taken, of_celery = wake_up(ours), wake_up(celerys)
    assert isinstance(taken, dict)
    assert isinstance(of_celery, dict)
    for read in (taken, of_celery):
        del read["headers"]["id"], read["headers"]["root_id"], read["properties"]["correlation_id"]
    assert taken == of_celery


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="must begin with redis"):
        ContractSettings(redis_url="http://localhost")
