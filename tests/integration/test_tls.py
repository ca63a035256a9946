"""Worker and API over TLS, for data and for Celery's messages."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from aiforge.core.topology import Kind
from aiforge.testing import FakeProvider
from tests.support.encrypted import Encrypted, encrypted
from tests.support.processes import Start
from tests.support.servers import RedisServer

SLOW = (pytest.mark.soak,)


@pytest.fixture(params=["server", pytest.param("sentinel", marks=SLOW), pytest.param("cluster", marks=SLOW)])
def place(
    request: pytest.FixtureRequest, redis7: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Encrypted]:
    kind: Kind = request.param
    with encrypted(kind, tmp_path_factory.mktemp("tls")) as place:
        yield place


@pytest.fixture
def environment(place: Encrypted, provider: FakeProvider) -> dict[str, str]:
    return {
        "redis_url": place.url,
        "broker_url": place.broker_url,
        "provider": "openai",
        "openai_api_key": "sk-test",
        "openai_base_url": provider.url,
        "metrics_port": "0",
        "api_port": "0",
    }


def test_a_question_is_answered(provider: FakeProvider, worker_process: Start, api_process: Start) -> None:
    provider.push("Through and through.")
    worker, api = worker_process(wait=False), api_process(wait=False)
    worker.ready()
    with httpx.Client(base_url=api.url, timeout=60) as http:
        reply = http.post("/v1/turns?wait=50", json={"message": "Encrypted?"})
    assert (reply.status_code, reply.json()["answer"]) == (200, "Through and through.")
    assert worker.terminate() == api.terminate() == 0
