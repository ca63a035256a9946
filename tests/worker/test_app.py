"""The application of a worker: how it looks for its broker."""

from __future__ import annotations

import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from tests.support.servers import RedisServer, free_port
from tests.support.waiting import eventually
from worker.app import application
from worker.broker.connection import AGAIN_SECONDS
from worker.contract.client import TurnClient
from worker.contract.queues import TASKS, queue
from worker.contract.schemas import BatchItem, BatchRequest, Lane, TurnRequest
from worker.runtime import Runtime
from worker.settings import WorkerSettings

pytestmark = pytest.mark.anyio


def test_a_broker_that_is_away_is_asked_again_at_a_steady_pace() -> None:
    """However long it was away, its worker consumes again a moment after it came back."""
    pauses: list[float] = []
    settings = WorkerSettings(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    with (
        application(settings, _none) as celery,
        celery.connection_for_read() as connection,
        pytest.raises(OperationalError),
    ):
        connection.ensure_connection(lambda _error, pause: pauses.append(pause), 2)
    assert pauses == [AGAIN_SECONDS] * 2


async def test_what_a_lost_connection_leaves_makes_no_lane_of_batches_longer(
    client: TurnClient, server: RedisServer
) -> None:
    settings = WorkerSettings(redis_url=server.url, namespace=client.settings.namespace)
    batch = await client.submit_batch(BatchRequest(items=[BatchItem(message="q")]))
    turn = await client.submit(TurnRequest(message="q"))
    await eventually(lambda: depth(client, {Lane.CHAT: 1, Lane.BATCH: 1}))
    with application(settings, _none) as celery, celery.connection_for_read() as connection:
        taken = [
            connection.default_channel.basic_get(queue(settings.namespace, lane))
            for lane in (Lane.CHAT, Lane.BATCH)
        ]
        assert all(taken), (batch, turn)
        connection.default_channel.qos.restore_unacked_once()
    assert await depth(client, {Lane.CHAT: 1, Lane.BATCH: 0})


def test_applications_of_one_process_keep_their_tasks_to_themselves() -> None:
    settings = WorkerSettings(redis_url=f"redis://127.0.0.1:{free_port()}/0")
    with application(settings, _none) as first, application(settings, _none) as second:
        for lane in Lane:
            assert first.tasks[TASKS[lane]].app is first
            assert second.tasks[TASKS[lane]].app is second
    with Celery("another", set_as_current=False) as another:
        assert not set(TASKS.values()) & set(another.tasks)


async def depth(client: TurnClient, waiting: dict[Lane, int]) -> bool:
    return (await client.stats()).depth == waiting


def _none() -> Runtime:
    raise AssertionError("no task runs")
