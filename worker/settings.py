"""What a worker can be told."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from aiforge.core.settings import Seconds
from worker.contract.calls.limits import Limits
from worker.contract.logs import Format, Level
from worker.contract.settings import ContractSettings

Pool = Literal["greenlets", "threads", "prefork", "solo"]


class WorkerSettings(ContractSettings):
    """Settings of one worker process."""

    concurrency: int = Field(default=100, ge=1, le=5_000)
    """How many turns, and how many slices, run at a time; with greenlets a tenth more of both together."""
    pool: Pool = "greenlets"
    """What runs the tasks; `threads` with a broker that has no event loop."""
    limits: Limits = Field(default_factory=dict)
    """What all workers together may ask of a model: `{"openai/gpt-4o-mini": {"requests_per_minute": 500,
    "tokens_per_minute": 200000, "concurrency": 64}, "openai/*": {…}}`; the nearest name counts."""
    batch_share: float = Field(default=0.8, gt=0, le=1)
    """The share of a limited model that batches have at most while chats are about."""
    batch_floor: float = Field(default=0.05, ge=0, le=0.5)
    """The share of a limited model that batches get even while chats wait for all of it."""
    metrics_host: str = "127.0.0.1"
    """The address at which metrics and health are served."""
    metrics_port: int = Field(default=9808, ge=0, le=65_535)
    """0 takes any free port; when the default is taken, the next free one is used."""
    grace_seconds: Seconds = 30.0
    """How long running turns may go on after SIGTERM before they are handed back."""
    log_level: Level = "info"
    """The least important lines that are written."""
    log_format: Format = "auto"
    """`auto` is text on a terminal and JSON elsewhere."""
