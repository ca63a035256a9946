"""The requests about schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiforge.client.call import Call, Page, as_json, keyed, nothing, one, pages, path_of, said
from aiforge.client.results import Schedule

PAGE_SCHEDULES: Final = 100
_NAME: Final = "schedules"
_PATH: Final = f"/v1/{_NAME}"
_schedule: Final = one(Schedule)


def make(
    cron: str, kind: str, template: Mapping[str, Any], fields: Mapping[str, Any], idempotency_key: str | None
) -> Call[Schedule]:
    body = as_json(said(**{"cron": cron, kind: said(**template), **fields}))
    return Call("POST", _PATH, _schedule, headers=keyed(idempotency_key), content=body)


def read(schedule_id: str) -> Call[Schedule]:
    return Call("GET", path_of(_NAME, schedule_id), _schedule)


def latest(conversation_id: str | None, before: str | None = None) -> Call[Page[Schedule]]:
    params = said(limit=str(PAGE_SCHEDULES), conversation_id=conversation_id, before=before)
    return pages(Schedule, _PATH, params, lambda answer: latest(conversation_id, answer.next))


def change(schedule_id: str, cron: str | None, timezone: str | None, paused: bool | None) -> Call[Schedule]:
    body = as_json(said(cron=cron, timezone=timezone, paused=paused))
    return Call("PATCH", path_of(_NAME, schedule_id), _schedule, content=body, settled=True)


def delete(schedule_id: str) -> Call[None]:
    return Call("DELETE", path_of(_NAME, schedule_id), nothing)
