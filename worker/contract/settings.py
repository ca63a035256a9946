"""Where the service's shared state lives; the same for worker and API."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated, ClassVar, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from aiforge.core.settings import Seconds, SecondsOrZero, Settings
from aiforge.core.topology import CLUSTERS, SENTINELS, SERVERS
from aiforge.core.types import ConfigError
from worker.contract.calls.budget_limits import check_owner
from worker.contract.calls.budget_limits import limits as parsed
from worker.contract.server.connection import check_url

_STORES: Final = (*SERVERS, *CLUSTERS, *SENTINELS)
_BROKERS: Final = ("redis://", "rediss://", *SENTINELS, "amqp://", "amqps://", "pyamqp://")


def _redis_url(url: str) -> str:
    if not url.startswith(_STORES):
        raise ValueError(f"must begin with {', '.join(_STORES[:-1])} or {_STORES[-1]}")
    check_url(url)
    return url


def _broker_url(url: str) -> str:
    if url.startswith(CLUSTERS):
        raise ValueError("Celery cannot use a Redis Cluster; name a single server, Sentinels or RabbitMQ")
    if not url.startswith(_BROKERS):
        raise ValueError(f"must begin with {', '.join(_BROKERS[:-1])} or {_BROKERS[-1]}")
    if url.startswith("redis"):
        check_url(url)
    else:
        _ = urlsplit(url).port
    return url


def _budgets(written: dict[str, dict[str, Decimal]]) -> dict[str, dict[str, Decimal]]:
    for owner, limits in written.items():
        try:
            check_owner(owner)
            parsed(limits)
        except ValueError as error:
            raise ValueError(f"{owner}: {error}") from None
    return written


class ContractSettings(Settings):
    """What worker and API have to agree on; see `aiforge config` for all names."""

    yaml_section: ClassVar[str | None] = "worker"

    redis_url: Annotated[str, AfterValidator(_redis_url)] | None = None
    """Where turns, conversations and batches are; unset means the embedded server. Besides one server
    also `redis+cluster://host:port,host:port` or `redis+sentinel://host:26379,host:26379/service`."""
    broker_url: Annotated[str, AfterValidator(_broker_url)] | None = None
    """Where Celery's messages are: a Redis, Sentinels, or RabbitMQ (`amqp://`); unset means the same as
    `redis_url`, which cannot be a cluster then."""
    namespace: str = Field(default="aiforge", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    """Begins the name of every key, so that installations can share a server."""
    data_dir: Path = Path(".aiforge")
    """Where the embedded server keeps its data."""
    lease_seconds: Seconds = 12.0
    """How long a worker may be silent before its turns are given to another."""
    max_attempts: int = Field(default=3, ge=2)
    """How often a turn or item may die with its worker; it has a process to itself the last time, which is
    never the first: only a death that took nobody along proves anything."""
    stream_keep: int = Field(default=20_000, ge=10)
    """How many events of a turn's log are kept."""
    turn_ttl_seconds: Seconds = 86_400.0
    """How long a finished turn and its log can be read."""
    conversation_ttl_seconds: SecondsOrZero = 2_592_000.0
    """How long a conversation without a `ttl` lives after the end of its last turn; 0 is for ever."""
    action_timeout_seconds: Seconds = 86_400.0
    """How long a turn waits for a human before it expires."""
    batch_ttl_seconds: Seconds = 604_800.0
    """How long a finished batch and its rows can be read."""
    file_ttl_seconds: SecondsOrZero = 2_592_000.0
    """How long a file lives that was uploaded, or written by a batch, without a time of its own; 0 is for
    ever."""
    files_url: str | None = None
    """Where the bytes of files are kept, as fsspec writes it (`file:///srv/files`, `s3://bucket/files`);
    unset means in Redis, compressed."""
    budgets: Annotated[dict[str, dict[str, Decimal]], AfterValidator(_budgets)] = Field(default={})
    """What each tenant, API key, conversation and batch may take, such as `{"tenant": {"usd_per_day": 25},
    "tenant:acme": {"requests_per_minute": 600}, "key:website": {"usd_per_day": 5}, "conversation":
    {"max_usd": 1}, "batch": {"max_tokens": 5000000}}`: requests, tokens or usd, per minute, hour or day, or
    at most (`max_`)."""
    tenant_weights: dict[str, Annotated[float, Field(ge=0.01, le=100)]] = Field(default={})
    """How the batches of tenants share the workers' slots, such as `{"acme": 3}`; a tenant that is not named
    weighs 1."""
    batch_window: int = Field(default=256, ge=1, le=10_000)
    """How many slices of one batch are queued or running at a time."""

    @property
    def suspect_after(self) -> int:
        """How many crashes make a suspect, which runs in a process of its own."""
        return self.max_attempts - 1

    @property
    def broker(self) -> str:
        """Where Celery's messages are; raises ConfigError when that has to be said and was not."""
        if self.broker_url is None and (self.redis_url or "").startswith(CLUSTERS):
            raise ConfigError(
                "AIFORGE_BROKER_URL: not set; Celery cannot use the Redis Cluster of AIFORGE_REDIS_URL,"
                " so name a single server, Sentinels or RabbitMQ"
            )
        return self.broker_url or self.redis_url or ""
