"""Schedules: what is stored and handed over of a template that cron posts again and again."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from worker.contract.schedule.ticks import CatchUp
from worker.contract.schemas import BatchRequest, TurnFailure, TurnRequest

SCHEDULE_VERSION: Final = 1
MOST_OF_A_CONVERSATION: Final = 100
"""How many schedules may post to one conversation."""


class ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller asks for: when to post, and either a turn or a batch. Times are Unix seconds."""

    cron: str
    timezone: str = "UTC"
    conversation_id: str | None = None
    """Where the turns go; without it each begins a conversation of its own."""
    turn: TurnRequest | None = None
    batch: BatchRequest | None = None
    catch_up: CatchUp = "last"
    starts_at: float | None = None
    ends_at: float | None = None
    paused: bool = False
    metadata: dict[str, str] | None = None


class ScheduleChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a schedule can be changed to; None leaves it as it is."""

    cron: str | None = None
    timezone: str | None = None
    paused: bool | None = None


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule's record holds of its request that is neither its template nor can be changed."""

    kind: Literal["turn", "batch"]
    catch_up: CatchUp
    starts_at: float | None = None
    ends_at: float | None = None
    metadata: dict[str, str] | None = None


class Fire(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a tick: a turn, a batch, or an error that refused it."""

    tick: int
    """Unix seconds."""
    turn_id: str | None = None
    batch_id: str | None = None
    error: TurnFailure | None = None


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as callers see it. Times are Unix seconds; where many are listed, templates are left out."""

    schedule_id: str
    cron: str
    timezone: str
    conversation_id: str | None
    kind: Literal["turn", "batch"]
    turn: TurnRequest | None = None
    batch: BatchRequest | None = None
    catch_up: CatchUp
    starts_at: float | None
    ends_at: float | None
    paused: bool
    metadata: dict[str, str] | None
    created_at: float
    next_at: int | None
    """None while it is paused, and when no tick is left."""
    last_fire: Fire | None
    replayed: bool = False
