"""The contract holds on Valkey and on Debian's Redis 7."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.object_store import ObjectStore
from tests.support.servers import RedisServer


@pytest.fixture(params=["valkey", "redis7"])
def server(request: pytest.FixtureRequest) -> RedisServer:
    chosen: RedisServer = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        yield store
