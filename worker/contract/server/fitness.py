"""Whether a Redis can be trusted with what this service stores: asked once, when a process starts."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from aiforge.core.topology import Topology, topology_of
from aiforge.core.types import ConfigError
from worker.contract.server.servers import TLSFault, UnknownService, members, place_of, tls_fault
from worker.contract.settings import ContractSettings
from worker.contract.wakeups.broker import on_redis

OLDEST: Final = (7, 0)
CLOCK_SECONDS: Final = 5.0
SECONDS: Final = 3.0


def check_redis(settings: ContractSettings) -> list[str]:
    """Warnings, a line each. Raises ConfigError naming the setting when data would get lost.

    A server that does not answer is none of them: whoever needs it waits for it.
    """
    warnings = _check_store(topology_of(settings.redis_url or ""))
    if settings.broker_url and on_redis(settings.broker_url):
        _check_broker(topology_of(settings.broker_url))
    return warnings


def _check_store(topology: Topology) -> list[str]:
    try:
        urls = asyncio.run(members(topology))
    except (UnknownService, TLSFault, ResponseError) as error:
        raise ConfigError(f"AIFORGE_REDIS_URL: {error}") from None
    except (RedisError, OSError) as error:
        return [f"Redis does not answer yet, so it was not checked: {error}"]
    if topology.kind == "server":
        return _check_server(topology, urls[0], "")
    found = [warning for url in urls for warning in _check_server(topology, url, f"{place_of(url)}: ")]
    return list(dict.fromkeys(found))


def _check_server(topology: Topology, url: str, where: str) -> list[str]:
    try:
        info, seconds = _ask(url)
    except (AuthenticationError, NoPermissionError) as error:
        raise ConfigError(
            f"AIFORGE_REDIS_URL: {where}the server does not let us do what we must: {error}"
        ) from None
    except ResponseError as error:
        raise ConfigError(f"AIFORGE_REDIS_URL: {where}{error}") from None
    except TLSFault as error:
        raise ConfigError(f"AIFORGE_REDIS_URL: {error}") from None
    except (RedisError, OSError) as error:
        return [f"{where}Redis does not answer yet, so it was not checked: {error}"]
    if problem := _unfit(info, topology):
        raise ConfigError(f"AIFORGE_REDIS_URL: {where}{problem}")
    warnings = []
    if not info.get("aof_enabled"):
        warnings.append(f"{where}Redis keeps no append-only file: what was accepted is lost when it crashes")
    if abs(seconds - time.time()) > CLOCK_SECONDS:
        warnings.append(
            f"{where}the clock of Redis is {seconds - time.time():+.0f} s off this machine's; Redis's counts"
        )
    return warnings


def _unfit(info: dict[str, Any], topology: Topology) -> str | None:
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        return f"Redis {version} is too old; it takes 7.0 or newer, or Valkey"
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return f"maxmemory-policy is {policy}, which throws turns away; set it to noeviction"
    if topology.kind == "server" and info.get("role") == "slave":
        return "this is a replica; name the primary"
    if topology.kind == "server" and info.get("cluster_enabled"):
        return "this is a node of a Redis Cluster; begin with redis+cluster://"
    return None


def _check_broker(topology: Topology) -> None:
    try:
        info, _ = _ask(asyncio.run(members(topology))[0])
    except (UnknownService, TLSFault) as error:
        raise ConfigError(f"AIFORGE_BROKER_URL: {error}") from None
    except (AuthenticationError, NoPermissionError) as error:
        raise ConfigError(f"AIFORGE_BROKER_URL: the server does not let us in: {error}") from None
    except (RedisError, OSError):
        return
    if info.get("cluster_enabled"):
        raise ConfigError("AIFORGE_BROKER_URL: Celery cannot use a Redis Cluster; name a single server")


def _ask(url: str) -> tuple[dict[str, Any], float]:
    """What the server says of itself, and its time; also whether it runs a script for us."""
    with redis.Redis.from_url(url, socket_timeout=SECONDS, socket_connect_timeout=SECONDS) as client:
        try:
            info: Any = client.info()
        except RedisError as error:
            if fault := tls_fault(error):
                raise TLSFault(f"{place_of(url)}: {fault}") from None
            raise
        client.script_load("return 1")
        seconds, microseconds = client.time()
        return info, seconds + microseconds / 1e6
