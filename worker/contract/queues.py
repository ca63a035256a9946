"""The names that worker and senders of wake-ups share: lanes, queues and tasks."""

from __future__ import annotations

from typing import Final

from worker.contract.ids import is_batch
from worker.contract.schemas import Lane

TASKS: Final = {Lane.CHAT: "aiforge.turn", Lane.BATCH: "aiforge.batch"}


def queue(namespace: str, lane: Lane) -> str:
    """The Celery queue of a lane."""
    return f"{namespace}.{lane}"


def lane_of(work: str) -> Lane:
    """The lane on which a turn or batch is woken."""
    return Lane.BATCH if is_batch(work) else Lane.CHAT
