"""Schedules: make one that posts turns or batches by the clock, list them, read, change and delete one."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from api import openapi, replies, schedule_schemas
from api.bodies import SCHEDULE, SCHEDULE_CHANGE, decode
from api.openapi import answer, problems
from api.params import ID, IdempotencyKey, Limit, ScheduleId, cursor_of, known_query, no_key
from api.state import service
from worker.contract.schedule.schemas import Schedule

PATH: Final = "/v1/schedules"
_CURSOR: Final = r"^[0-9]{1,15}:sched_[0-9]{2}[0-9a-f]{20}$"
_LISTED: Final = tuple(schedule_schemas.ListedSchedule.model_fields)

router = APIRouter(prefix=PATH, tags=["schedules"], dependencies=[Depends(known_query)])


@router.post(
    "",
    status_code=201,
    responses={
        201: answer(
            schedule_schemas.Schedule,
            "The schedule.",
            {**openapi.location("schedule"), "Idempotent-Replayed": openapi.TURN["Idempotent-Replayed"]},
        ),
        **problems(400, 409, 410, 413, 415, 422, 503),
    },
    openapi_extra=openapi.body(schedule_schemas.ScheduleBody),
    summary="Make a schedule",
)
async def post_schedule(request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    body = decode(await request.body(), SCHEDULE)
    made = await service(request).client.schedules.open(body.request(), idempotency_key=idempotency_key)
    headers = replies.made_at(f"{PATH}/{made.schedule_id}", replayed=made.replayed)
    return replies.reply(_whole(made), status=201, headers=headers)


@router.get(
    "",
    responses={200: answer(schedule_schemas.Schedules, "The newest first."), **problems(400, 422, 503)},
    summary="List schedules",
)
async def get_schedules(
    request: Request,
    conversation_id: Annotated[
        str | None, Query(pattern=ID, max_length=128, description="Only those that post to it.")
    ] = None,
    before: Annotated[
        str | None, Query(pattern=_CURSOR, description="`next` of the page before this one.")
    ] = None,
    limit: Limit = 100,
) -> Response:
    found = await service(request).client.schedules.page(
        conversation_id=conversation_id, before=cursor_of(before), limit=limit + 1
    )
    following = None
    if len(found) > limit:
        when, last = found[limit - 1]
        following = when, last.schedule_id
    return replies.reply(replies.paged([_listed(value) for _, value in found[:limit]], following))


@router.get(
    "/{schedule_id}",
    responses={200: answer(schedule_schemas.Schedule, "The schedule."), **problems(404, 422, 503)},
    summary="Read a schedule",
)
async def get_schedule(request: Request, schedule_id: ScheduleId) -> Response:
    return replies.reply(_whole(await service(request).client.schedules.get(schedule_id)))


@router.patch(
    "/{schedule_id}",
    dependencies=[Depends(no_key)],
    responses={
        200: answer(schedule_schemas.Schedule, "The schedule as it is now."),
        **problems(400, 404, 409, 413, 415, 422, 503),
    },
    openapi_extra=openapi.body(schedule_schemas.ScheduleChange),
    summary="Pause or resume a schedule, or let it fire at other times",
)
async def patch_schedule(request: Request, schedule_id: ScheduleId) -> Response:
    change = decode(await request.body(), SCHEDULE_CHANGE)
    return replies.reply(_whole(await service(request).client.schedules.change(schedule_id, change)))


@router.delete(
    "/{schedule_id}",
    responses={
        200: answer(schedule_schemas.ScheduleDeleted, "It fires no more; what it has posted stays."),
        **problems(404, 422, 503),
    },
    summary="Delete a schedule",
)
async def delete_schedule(request: Request, schedule_id: ScheduleId) -> Response:
    await service(request).client.schedules.delete(schedule_id)
    return replies.reply({"schedule_id": schedule_id, "deleted": True})


def _listed(value: Schedule) -> dict[str, Any]:
    return {name: getattr(value, name) for name in _LISTED}


def _whole(value: Schedule) -> dict[str, Any]:
    """With its template as it was posted: when a scheduled turn runs is the schedule's affair."""
    names = schedule_schemas.ScheduledTurn.model_fields
    turn = None if value.turn is None else {name: getattr(value.turn, name) for name in names}
    return {**_listed(value), "turn": turn, "batch": value.batch}
