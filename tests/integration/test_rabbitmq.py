"""RabbitMQ as the broker: the same turns, the same batches, the same garbage, and a worker that is killed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any, Final

import amqp
import httpx
import pytest
from kombu.connection import Connection

from aiforge.testing import FakeProvider, Gate, Reply
from tests.support.messages import DEEP
from tests.support.processes import Service, Start
from tests.support.rabbitmq import RabbitMQ, program
from tests.support.turns import Connect
from tests.support.waiting import eventually
from worker.contract.client import TurnClient
from worker.contract.ids import new_turn_id
from worker.contract.queues import TASKS, queue
from worker.contract.schemas import BatchItem, BatchRequest, BatchState, Lane, TurnRequest, TurnState

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(bool(os.environ.get("CI")), reason="CI installs no RabbitMQ; run it at a desk"),
    pytest.mark.skipif(program("rabbitmq-server") is None, reason="rabbitmq-server is not installed"),
]
JSON: Final = "application/json"
BODY: Final = json.dumps([["x"], {}, {}])


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[RabbitMQ]:
    with RabbitMQ() as broker:
        yield broker


@pytest.fixture
def environment(environment: dict[str, str], rabbitmq: RabbitMQ) -> dict[str, str]:
    return {**environment, "broker_url": rabbitmq.url, "pool": "threads"}


@pytest.fixture
async def client(connect: Connect, rabbitmq: RabbitMQ) -> TurnClient:
    return await connect(broker_url=rabbitmq.url)


@pytest.fixture
def channel(rabbitmq: RabbitMQ) -> Iterator[Any]:
    with Connection(rabbitmq.url) as connection:
        yield connection.channel()


@pytest.mark.soak
@pytest.mark.parametrize("pool", ["greenlets", "threads", "prefork", "solo"])
async def test_turns_and_batches_run(
    pool: str, client: TurnClient, worker_process: Start, api_process: Start
) -> None:
    worker, api = worker_process(pool=pool, concurrency="3"), api_process()
    async with httpx.AsyncClient(timeout=30, base_url=api.url) as http:
        for _ in range(3):
            answered = await http.post("/v1/conversations/c/turns?wait=20", json={"message": "Hello?"})
            assert answered.json()["state"] == "completed", answered.text
        assert (await http.get(f"{worker.url}/readyz")).status_code == 200
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="x") for _ in range(20)]))
    await eventually(lambda: _over(client, batch.batch_id), 20)
    await eventually(lambda: _is_empty(client), 20)
    assert worker.terminate() == 0


@pytest.mark.soak
async def test_a_killed_workers_turn_is_answered_by_another(
    client: TurnClient, provider: FakeProvider, worker_process: Start
) -> None:
    provider.when("slow", Reply(chunks=["one ", Gate("door"), "two"]), times=1)
    first = worker_process(lease_seconds="2")
    turn = await client.submit(TurnRequest(message="slow"))
    await eventually(lambda: len(provider.calls) == 1, 20)
    first.kill()
    worker_process(lease_seconds="2")
    ended = await client.wait(turn.turn_id, 20)
    assert (ended.state, ended.attempts) == (TurnState.COMPLETED, 2)


@pytest.mark.soak
async def test_garbage_is_counted_and_dropped(
    client: TurnClient, worker_process: Start, namespace: str, channel: Any
) -> None:
    worker = worker_process()
    lane = queue(namespace, Lane.CHAT)
    for message in _garbage():
        channel.basic_publish(message, exchange="", routing_key=lane)
    channel.basic_publish(_message(task="os.system"), exchange="", routing_key=lane)
    channel.basic_publish(_message(body=json.dumps([["' OR 1=1"], {}, {}])), exchange="", routing_key=lane)
    later = json.dumps([[new_turn_id(1)], {}, {}])
    channel.basic_publish(
        _message(body=later, eta="2099-01-01T00:00:00", expires="never"), exchange="", routing_key=lane
    )
    nothings = [_raw("{not json"), _raw(DEEP), _raw("[1, 2]"), _raw("{}", content_type="x/y")]
    for message in nothings:
        channel.basic_publish(message, exchange="celery.pidbox", routing_key="")
    expected = {"garbage": len(_garbage()) + len(nothings), "unknown_task": 1, "forged": 1, "unknown": 1}
    await eventually(lambda: {reason: _dropped(worker, reason) for reason in expected} == expected, 20)
    turn = await client.submit(TurnRequest(message="Still there?"))
    assert (await client.wait(turn.turn_id, 20)).state is TurnState.COMPLETED
    assert worker.running
    assert "OR 1=1" not in worker.output


def _garbage() -> list[Any]:
    return [
        _raw("}{garbage"),
        _raw("[1,2]"),
        _raw("\x80\x04\x95", content_type="application/x-python-serialize"),
        _message(body=DEEP),
        _message(body=f'[["x"], {{"a": {DEEP}, {{}}]'),
        _message(body='[["x"], {"turn_id": "x"}, {}]'),
        _message(body="[[5], {}, {}]"),
        _message(task=5),
        _raw(BODY, application_headers={}),
        _raw(BODY),
    ]


def _message(task: Any = TASKS[Lane.CHAT], body: str = BODY, **headers: Any) -> amqp.Message:
    return _raw(body, application_headers={"id": "x", "task": task, **headers})


def _raw(body: str, *, content_type: str = JSON, **properties: Any) -> amqp.Message:
    return amqp.Message(body, content_type=content_type, content_encoding="utf-8", **properties)


def _dropped(worker: Service, reason: str) -> int:
    text = httpx.get(f"{worker.url}/metrics").text
    found = re.search(rf'aiforge_messages_dropped_total{{reason="{reason}"}} (\d+)', text)
    return int(found[1]) if found else 0


async def _is_empty(client: TurnClient) -> bool:
    return sum((await client.stats()).depth.values()) == 0


async def _over(client: TurnClient, batch_id: str) -> bool:
    return (await client.batch(batch_id)).state is BatchState.COMPLETED
