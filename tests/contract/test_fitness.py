"""A Redis that would lose turns is refused in one line; one that might is named."""

from __future__ import annotations

import pytest

from aiforge.core.types import ConfigError
from tests.support.servers import RedisServer, free_port
from worker.contract.server.fitness import check_redis
from worker.contract.settings import ContractSettings


def checked(url: str, broker_url: str | None = None) -> list[str]:
    return check_redis(ContractSettings(redis_url=url, broker_url=broker_url))


def test_a_server_with_an_append_only_file_is_fine(server: RedisServer) -> None:
    assert checked(server.url) == []


def test_a_server_that_keeps_nothing_is_named() -> None:
    with RedisServer(options={"appendonly": "no"}) as server:
        (warning,) = checked(server.url)
    assert "append-only file" in warning


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_throws_away_is_refused(policy: str) -> None:
    with (
        RedisServer(options={"maxmemory-policy": policy}) as server,
        pytest.raises(ConfigError, match=f"AIFORGE_REDIS_URL: maxmemory-policy is {policy}.*noeviction"),
    ):
        checked(server.url)


def test_a_replica_is_refused() -> None:
    with RedisServer() as primary, RedisServer(options={"replicaof": f"127.0.0.1 {primary.port}"}) as replica:
        with pytest.raises(ConfigError, match="replica"):
            checked(replica.url)
        assert checked(primary.url) == []


def test_a_cluster_is_refused_by_name() -> None:
    with RedisServer(options={"cluster-enabled": "yes"}) as cluster, RedisServer() as single:
        with pytest.raises(ConfigError, match="AIFORGE_BROKER_URL: Celery cannot use a Redis Cluster"):
            checked(single.url, broker_url=cluster.url)
        with pytest.raises(ConfigError, match=r"AIFORGE_REDIS_URL: .* begin with redis\+cluster://"):
            checked(cluster.url)


def test_a_user_who_may_run_no_script_is_refused(server: RedisServer) -> None:
    server.ask("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+ping", "+info")
    with pytest.raises(ConfigError, match="AIFORGE_REDIS_URL: the server does not let us"):
        checked(server.url.replace("redis://", "redis://reader:pw@"))
    with pytest.raises(ConfigError, match="AIFORGE_REDIS_URL"):
        checked(server.url.replace("redis://", "redis://reader:wrong@"))
    server.ask("ACL", "DELUSER", "reader")


def test_a_server_that_is_away_is_waited_for() -> None:
    (warning,) = checked(f"redis://127.0.0.1:{free_port()}/0")
    assert "not checked" in warning
