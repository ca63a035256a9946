"""What `/openapi.json` says of schedules."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.batch_schemas import BatchBody
from api.schemas import Body, Defaults, Parts, TurnFailure
from worker.contract.schedule.ticks import LONGEST_CRON, MISSED_AFTER, MOST_TICKS

_TURN: Final[dict[str, Any]] = {
    "message": "What happened since yesterday?",
    **dict.fromkeys(("system_prompt", "model", "temperature", "max_tokens", "tools", "metadata", "on_busy")),
}
_SCHEDULE: Final[dict[str, Any]] = {
    "schedule_id": "sched_171f0a93c2d4e5b6a7f809",
    "cron": "0 9 * * MON-FRI",
    "timezone": "Europe/Berlin",
    "conversation_id": "user-42",
    "kind": "turn",
    "turn": _TURN,
    "batch": None,
    "catch_up": "last",
    "starts_at": None,
    "ends_at": None,
    "paused": False,
    "metadata": {"team": "shop"},
    "created_at": 1767225600.128,
    "next_at": 1767254400,
    "last_fire": {
        "tick": 1767168000,
        "turn_id": "171f0a93c2d4e5b6a7f809",
        "batch_id": None,
        "error": None,
    },
}
_LISTED: Final = {name: value for name, value in _SCHEDULE.items() if name not in ("turn", "batch")}
_CRON: Final = (
    "minute, hour, day of the month, month and day of the week, as Debian's cron reads them; with a sixth"
    " field, which comes first, seconds."
)


class ScheduledTurn(Defaults):
    """A turn as it is posted at each tick."""

    message: str | Parts = Field(description="Text, or content parts in OpenAI's form.")
    on_busy: Literal["enqueue", "reject", "interrupt", "rollback"] | None = Field(
        None, description="When the conversation is busy; its own when left out."
    )


class ScheduleBody(Body):
    """When to post, and either a turn or a batch."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "cron": "0 9 * * MON-FRI",
                    "timezone": "Europe/Berlin",
                    "conversation_id": "user-42",
                    "turn": {"message": "What happened since yesterday?"},
                    "metadata": {"team": "shop"},
                },
                {
                    "cron": "30 2 * * *",
                    "batch": {"items": ["Is the shop open?", "Where is my order?"], "model": "gpt-4o-mini"},
                    "catch_up": "skip",
                },
            ]
        },
    )

    cron: str = Field(max_length=LONGEST_CRON, description=f"Five fields: {_CRON}")
    timezone: str = Field(
        "UTC", description="A zone of the IANA database; the expression is read in its time."
    )
    conversation_id: str | None = Field(
        None, description="Where the turns go; without it each begins a conversation of its own."
    )
    turn: ScheduledTurn | None = None
    batch: BatchBody | None = None
    catch_up: Literal["skip", "last", "all"] = Field(
        "last",
        description=f"What becomes of ticks that nobody could fire within {MISSED_AFTER} s: they are left"
        f" out, one fire stands for all of them, or all of them fire, the latest {MOST_TICKS} at most.",
    )
    starts_at: float | None = Field(
        None,
        description="Unix seconds, before which no tick lies; ticks between a start in the past and now are"
        " missed ones. When left out, the first tick is the next one.",
    )
    ends_at: float | None = Field(None, description="Unix seconds, behind which no tick lies.")
    paused: bool = Field(False, description="Ticks that pass while it is paused are left out.")
    metadata: dict[str, str] | None = Field(None, description="The caller's own notes on the schedule.")


class ScheduleChange(Body):
    """What is to be changed; what is left out stays as it is."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"paused": True}, {"cron": "0 8 * * MON-FRI"}]}
    )

    cron: str | None = Field(None, max_length=LONGEST_CRON)
    timezone: str | None = None
    paused: bool | None = None


class Fire(BaseModel):
    """What came of a tick: a turn, a batch, or why it was refused."""

    tick: int = Field(description="Unix seconds.", examples=[1767168000])
    turn_id: str | None
    batch_id: str | None
    error: TurnFailure | None


class ListedSchedule(BaseModel):
    """A schedule without its template. Times are Unix seconds."""

    model_config = ConfigDict(json_schema_extra={"examples": [_LISTED]})

    schedule_id: str
    cron: str
    timezone: str
    conversation_id: str | None
    kind: Literal["turn", "batch"]
    catch_up: Literal["skip", "last", "all"]
    starts_at: float | None
    ends_at: float | None
    paused: bool
    metadata: dict[str, str] | None
    created_at: float
    next_at: int | None = Field(description="The next tick; null while it is paused and when none is left.")
    last_fire: Fire | None


class Schedule(ListedSchedule):
    """A schedule with what it posts."""

    model_config = ConfigDict(json_schema_extra={"examples": [_SCHEDULE]})

    turn: ScheduledTurn | None
    batch: BatchBody | None


class Schedules(BaseModel):
    """A page of schedules, the newest first."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "data": [_LISTED],
                    "has_more": True,
                    "next": "1767225600128:sched_171f0a93c2d4e5b6a7f809",
                }
            ]
        }
    )

    object: Literal["list"]
    data: list[ListedSchedule]
    has_more: bool
    next: str | None = Field(description="What `before` has to be for the next page.")


class ScheduleDeleted(BaseModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"schedule_id": "sched_171f0a93c2d4e5b6a7f809", "deleted": True}]}
    )

    schedule_id: str
    deleted: Literal[True]


UNREFERENCED: Final[tuple[type[BaseModel], ...]] = (ScheduleBody, ScheduleChange)
"""As in `api.schemas`."""
