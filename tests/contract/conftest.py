"""The contract holds on Valkey and on Debian's Redis 7."""

from __future__ import annotations

import pytest

from tests.support.servers import RedisServer


@pytest.fixture(params=["valkey", "redis7"])
def server(request: pytest.FixtureRequest) -> RedisServer:
    chosen: RedisServer = request.getfixturevalue(request.param)
    return chosen
