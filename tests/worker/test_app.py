"""The application of a worker: how it looks for its broker."""

from __future__ import annotations

import pytest
from kombu.exceptions import OperationalError

from tests.support.servers import free_port
from worker.app import application
from worker.broker.connection import AGAIN_SECONDS
from worker.runtime import Runtime
from worker.settings import WorkerSettings


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


def _none() -> Runtime:
    raise AssertionError("no task runs")
