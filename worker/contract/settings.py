"""Where the service's shared state lives; the same for worker and API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from aiforge.core.settings import Seconds, Settings


def _redis_url(url: str) -> str:
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("must begin with redis://, rediss:// or unix://")
    return url


class ContractSettings(Settings):
    """What worker and API have to agree on; see `aiforge config` for all names."""

    yaml_section: ClassVar[str | None] = "worker"

    redis_url: Annotated[str, AfterValidator(_redis_url)] | None = None
    """Where turns, conversations and batches are; unset means the embedded server."""
    broker_url: str | None = None
    """Where Celery's messages are; unset means the same server."""
    namespace: str = Field(default="aiforge", pattern=r"^[A-Za-z0-9._-]{1,64}$")
    data_dir: Path = Path(".aiforge")
    lease_seconds: Seconds = 12.0
    """How long a worker may be silent before its turns are given to another."""
    max_attempts: int = Field(default=3, ge=1)
    stream_keep: int = Field(default=20_000, ge=10)
    """How many events of a turn's log are kept."""
    turn_ttl_seconds: Seconds = 86_400.0
    """How long a finished turn and its log can be read; the conversation's memory stays."""
    batch_ttl_seconds: Seconds = 604_800.0
    """How long a finished batch and its rows can be read."""
    batch_window: int = Field(default=256, ge=1, le=10_000)
    """How many slices of one batch are queued or running at a time."""
