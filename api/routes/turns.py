"""Turns: post one, wait for it, stream it, read it, cancel it, answer what it asks."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from api import openapi, replies, schemas
from api.bodies import RESUME, TURN, TurnBody, decode
from api.edge import TURN_ID
from api.errors import Problem
from api.openapi import answer, problems
from api.params import (
    ID,
    Accept,
    AfterEvent,
    ConversationId,
    IdempotencyKey,
    LastEventId,
    OnDisconnect,
    TurnId,
    Wait,
    check_field_key,
    known_query,
    stream_start,
)
from api.sse import MEDIA_TYPE, EventStream
from api.state import Service, service
from api.stopping import stop
from worker.contract.schemas import Turn, TurnState

router = APIRouter(prefix="/v1", tags=["turns"], dependencies=[Depends(known_query)])

_POSTED: Final[openapi.Responses] = {
    200: {
        **answer(
            schemas.Turn,
            "With `wait`: the finished turn. With `Accept: text/event-stream`: its events.",
            openapi.TURN,
        ),
        "content": openapi.stream(),
    },
    202: answer(schemas.Turn, "The turn is stored and will run, or `wait` ran out.", openapi.TURN, "queued"),
    **problems(400, 404, 409, 410, 413, 415, 422, 429, 503),
}


@router.post(
    "/turns",
    status_code=202,
    responses=_POSTED,
    openapi_extra=openapi.body(schemas.TurnBody),
    summary="Post a turn to a new conversation",
)
async def post_turn(
    request: Request,
    *,
    accept: Accept = "",
    idempotency_key: IdempotencyKey = None,
    wait: Wait = None,
    on_disconnect: OnDisconnect = "continue",
) -> Response:
    return await _post(
        request, accept=accept, idempotency_key=idempotency_key, wait=wait, on_disconnect=on_disconnect
    )


@router.post(
    "/conversations/{conversation_id}/turns",
    status_code=202,
    responses=_POSTED,
    openapi_extra=openapi.body(schemas.TurnBody),
    summary="Post a turn to a conversation",
)
async def post_conversation_turn(
    request: Request,
    conversation_id: ConversationId,
    *,
    accept: Accept = "",
    idempotency_key: IdempotencyKey = None,
    wait: Wait = None,
    on_disconnect: OnDisconnect = "continue",
    if_not_exists: Annotated[
        Literal["create", "reject"], Query(description="What to do when there is no such conversation.")
    ] = "create",
) -> Response:
    return await _post(
        request,
        conversation_id=conversation_id,
        if_not_exists=if_not_exists,
        accept=accept,
        idempotency_key=idempotency_key,
        wait=wait,
        on_disconnect=on_disconnect,
    )


async def _post(
    request: Request,
    *,
    conversation_id: str | None = None,
    if_not_exists: Literal["create", "reject"] = "create",
    accept: str,
    idempotency_key: str | None,
    wait: float | None,
    on_disconnect: str,
) -> Response:
    streamed = MEDIA_TYPE in accept
    if streamed and wait is not None:
        raise Problem(400, "invalid_value", f"wait: not with Accept: {MEDIA_TYPE}", param="wait")
    if on_disconnect == "cancel" and wait is None and not streamed:
        raise Problem(
            400,
            "invalid_value",
            f"on_disconnect: only with wait or Accept: {MEDIA_TYPE}",
            param="on_disconnect",
        )
    body = decode(await request.body(), TURN)
    shared = service(request)
    turn = await shared.client.submit(
        body.request(),
        conversation_id=conversation_id,
        if_not_exists=if_not_exists,
        idempotency_key=_key(idempotency_key, body),
    )
    request.scope[TURN_ID] = turn.turn_id
    headers = replies.made_at(f"/v1/turns/{turn.turn_id}", replayed=turn.replayed) | {
        "x-turn-id": turn.turn_id
    }
    cancels = on_disconnect == "cancel"
    if streamed:
        return _stream(shared, turn.turn_id, 0, headers, cancels=cancels)
    if wait is None:
        return replies.reply(replies.turn(turn), status=202, headers=headers)
    turn = await _waited(request, shared, turn, wait, cancels=cancels)
    return replies.reply(replies.turn(turn), status=200 if turn.finished else 202, headers=headers)


@router.get(
    "/turns",
    responses={200: answer(schemas.Turn, "The turn."), **problems(400, 404, 422, 503)},
    summary="Find a turn by its idempotency key",
)
async def find_turn(
    request: Request,
    idempotency_key: Annotated[str, Query(min_length=1, max_length=255, description="As it was sent.")],
    conversation_id: Annotated[
        str | None, Query(pattern=ID, description="The conversation that it was posted to, if one was named.")
    ] = None,
) -> Response:
    turn = await service(request).client.keyed(idempotency_key, conversation_id=conversation_id)
    return replies.reply(replies.turn(turn))


@router.get(
    "/turns/{turn_id}",
    responses={
        200: answer(schemas.Turn, "The turn as it is, or as it is when `wait` ends."),
        **problems(400, 404, 422, 503),
    },
    summary="Read a turn",
)
async def get_turn(request: Request, turn_id: TurnId, wait: Wait = None) -> Response:
    shared = service(request)
    request.scope[TURN_ID] = turn_id
    turn = await shared.client.turn(turn_id)
    if wait is not None:
        turn = await _waited(request, shared, turn, wait)
    return replies.reply(replies.turn(turn))


@router.get(
    "/turns/{turn_id}/events",
    response_class=Response,
    responses={
        200: {
            "description": "The turn's events.",
            "headers": openapi.REQUEST_ID,
            "content": openapi.stream(),
        },
        **problems(400, 404, 422, 503),
    },
    summary="Stream a turn's events",
)
async def get_events(
    request: Request,
    turn_id: TurnId,
    last_event_id: LastEventId = None,
    after: AfterEvent = None,
) -> Response:
    shared = service(request)
    request.scope[TURN_ID] = turn_id
    last = await shared.client.last_event(turn_id)
    start = stream_start(last_event_id, after, last, "the turn's last event")
    return _stream(shared, turn_id, start, {"x-turn-id": turn_id})


@router.post(
    "/turns/{turn_id}/cancel",
    responses={
        200: answer(schemas.Turn, "The turn; one that runs is cancelled shortly."),
        **problems(404, 409, 422, 503),
    },
    summary="Cancel a turn",
)
async def cancel_turn(
    request: Request,
    turn_id: TurnId,
    if_state: Annotated[
        Literal["scheduled", "queued", "running", "requires_action"] | None,
        Query(description="Cancel it only in this state; 409 in any other."),
    ] = None,
) -> Response:
    request.scope[TURN_ID] = turn_id
    expected = TurnState(if_state) if if_state else None
    return replies.reply(replies.turn(await service(request).client.cancel(turn_id, expected=expected)))


@router.post(
    "/turns/{turn_id}/resume",
    responses={
        200: answer(schemas.Turn, "The turn; it goes on as soon as a worker is free."),
        **problems(400, 404, 409, 413, 415, 422, 503),
    },
    openapi_extra=openapi.body(schemas.ResumeBody),
    summary="Answer what a turn asks",
)
async def resume_turn(request: Request, turn_id: TurnId) -> Response:
    request.scope[TURN_ID] = turn_id
    body = decode(await request.body(), RESUME)
    turn = await service(request).client.resume(turn_id, body.question_id, body.answer)
    return replies.reply(replies.turn(turn))


def _key(header: str | None, body: TurnBody) -> str | None:
    if header is not None and body.client_message_id not in (None, header):
        raise Problem(
            400, "invalid_value", "client_message_id: differs from Idempotency-Key", param="client_message_id"
        )
    if body.client_message_id is not None:
        check_field_key("client_message_id", body.client_message_id)
    return header if header is not None else body.client_message_id


def _stream(
    shared: Service, turn_id: str, after: int, headers: dict[str, str], *, cancels: bool = False
) -> EventStream:
    async def waits(question_id: str) -> bool:
        question = (await shared.client.turn(turn_id)).question
        return question is not None and question.question_id == question_id

    return EventStream(
        shared.client.events(turn_id, after=after),
        streams=shared.streams,
        ping_seconds=shared.settings.api_ping_seconds,
        waits=waits,
        left=partial(shared.client.cancel, turn_id) if cancels else None,
        headers=headers,
    )


async def _waited(
    request: Request, shared: Service, turn: Turn, seconds: float, *, cancels: bool = False
) -> Turn:
    """The turn when it ends, time runs out, its caller leaves or the process drains."""
    if turn.finished or not seconds:
        return turn
    waiting = asyncio.create_task(shared.client.wait(turn.turn_id, seconds))
    others = [asyncio.create_task(_left(request)), asyncio.create_task(shared.streams.draining.wait())]
    tasks = [waiting, *others]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if cancels and others[0].done() and not waiting.done():
            await shared.client.cancel(turn.turn_id)
        return waiting.result() if waiting.done() else turn
    finally:
        await stop(*tasks)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
