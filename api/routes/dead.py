"""Dead letters: turns that were given up because every worker that ran them died."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from api import openapi, replies, schemas
from api.openapi import answer, problems
from api.params import Limit, TurnId, known_query
from api.state import service

router = APIRouter(prefix="/v1/dead", tags=["dead letters"], dependencies=[Depends(known_query)])


@router.get(
    "",
    responses={200: answer(schemas.Turns, "The latest first."), **problems(400, 503)},
    summary="List dead letters",
)
async def get_dead(request: Request, limit: Limit = 100) -> Response:
    found = await service(request).client.dead_letters(limit=limit)
    return replies.reply(replies.listed([replies.turn(one) for one in found]))


@router.get(
    "/{turn_id}",
    responses={200: answer(schemas.Turn, "The turn that was given up."), **problems(404, 422, 503)},
    summary="Read a dead letter",
)
async def get_dead_letter(request: Request, turn_id: TurnId) -> Response:
    return replies.reply(replies.turn(await service(request).client.dead_letter(turn_id)))


@router.post(
    "/{turn_id}/requeue",
    status_code=202,
    responses={
        202: answer(schemas.Turn, "The new turn that asks the same again.", openapi.location("turn")),
        **problems(404, 409, 410, 422, 503),
    },
    summary="Post a dead letter again, as a new turn",
)
async def requeue_dead(request: Request, turn_id: TurnId) -> Response:
    turn = await service(request).client.requeue_dead(turn_id)
    headers = replies.made_at(f"/v1/turns/{turn.turn_id}")
    return replies.reply(replies.turn(turn), status=202, headers=headers)


@router.delete(
    "/{turn_id}",
    status_code=204,
    responses={
        204: {"description": "It is no dead letter any more.", "headers": openapi.REQUEST_ID},
        **problems(404, 422, 503),
    },
    response_class=Response,
    summary="Drop a dead letter; the turn stays failed",
)
async def drop_dead(request: Request, turn_id: TurnId) -> Response:
    await service(request).client.drop_dead(turn_id)
    return Response(status_code=204)
