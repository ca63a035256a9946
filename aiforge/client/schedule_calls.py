"""The requests about schedules, as `calls` has those about everything else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aiforge.client.calls import Call, as_json, nothing, one, path_of
from aiforge.client.results import Schedule

PAGE_SCHEDULES: Final = 100
_NAME: Final = "schedules"
_PATH: Final = f"/v1/{_NAME}"


class Listed(msgspec.Struct):
    """Some schedules, and what `before` has to be for the next ones."""

    data: list[Schedule]
    next: str | None = None


_schedule: Final = one(Schedule)
_listed: Final = one(Listed)


def make(
    cron: str, kind: str, template: Mapping[str, Any], fields: Mapping[str, Any], idempotency_key: str | None
) -> Call[Schedule]:
    given = {"cron": cron, kind: _said(template), **fields}
    return Call(
        "POST",
        _PATH,
        _schedule,
        headers={} if idempotency_key is None else {"Idempotency-Key": idempotency_key},
        content=as_json(_said(given)),
    )


def read(schedule_id: str) -> Call[Schedule]:
    return Call("GET", path_of(_NAME, schedule_id), _schedule)


def page(conversation_id: str | None, before: str | None) -> Call[Listed]:
    given = {"limit": str(PAGE_SCHEDULES), "conversation_id": conversation_id, "before": before}
    return Call("GET", _PATH, _listed, params=_said(given))


def change(schedule_id: str, cron: str | None, timezone: str | None, paused: bool | None) -> Call[Schedule]:
    fields = {"cron": cron, "timezone": timezone, "paused": paused}
    return Call("PATCH", path_of(_NAME, schedule_id), _schedule, content=as_json(_said(fields)), settled=True)


def delete(schedule_id: str) -> Call[None]:
    return Call("DELETE", path_of(_NAME, schedule_id), nothing)


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is left to the service."""
    return {name: value for name, value in fields.items() if value is not None}
