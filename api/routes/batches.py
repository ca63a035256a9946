"""Batches as OpenAI has them, and more: post one, watch it, read its results, steer it."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from api import batch_schemas, openapi, replies
from api.bodies import BATCH, decode
from api.openapi import answer, problems
from api.params import BATCH as BATCH_PATTERN
from api.params import After, AfterEvent, BatchId, IdempotencyKey, LastEventId, known_query, stream_start
from api.sse import MEDIA_TYPE, EventStream
from api.state import service

PATH: Final = "/v1/batches"
_EVENTS: Final = """\
id: 1
event: row
data: {"index":0,"id":"faq-1","status":"ok",…}

event: progress
data: {"object":"batch","status":"in_progress",…}

event: done
data: {"object":"batch","status":"completed",…}

Server-Sent Events. `row` is one item's result, its `id` the row's number in the order in which rows came;
`progress` is the batch whenever its counts have changed, at most twice a second; `done` is the batch when it
is over, and the last event. Of a batch that is deleted meanwhile, `done` is how it was last seen, with
`"deleted": true`. To resume, send the last id as `Last-Event-ID` or `?after=`."""

router = APIRouter(prefix=PATH, tags=["batches"], dependencies=[Depends(known_query)])


@router.post(
    "",
    responses={
        200: answer(batch_schemas.Batch, "The batch is stored and will run.", openapi.location("batch")),
        **problems(400, 409, 413, 415, 422, 503),
    },
    openapi_extra=openapi.body(batch_schemas.BatchBody),
    summary="Post a batch",
)
async def post_batch(request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    body = decode(await request.body(), BATCH)
    made = await service(request).client.submit_batch(body.request(), idempotency_key=idempotency_key)
    headers = replies.made_at(f"{PATH}/{made.batch_id}", replayed=made.replayed)
    return replies.reply(replies.batch(made), headers=headers)


@router.get(
    "",
    responses={200: answer(batch_schemas.Batches, "The newest first."), **problems(400, 404, 422, 503)},
    summary="List batches",
)
async def get_batches(
    request: Request,
    after: Annotated[
        str | None, Query(pattern=BATCH_PATTERN, description="The last batch that is known.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Response:
    found = await service(request).client.latest_batches(after=after, limit=limit + 1)
    return replies.reply(replies.page([replies.batch(one) for one in found], limit))


@router.get(
    "/{batch_id}",
    responses={200: answer(batch_schemas.Batch, "The batch as it is."), **problems(404, 422, 503)},
    summary="Read a batch",
)
async def get_batch(request: Request, batch_id: BatchId) -> Response:
    return replies.reply(replies.batch(await service(request).client.batch(batch_id)))


@router.get(
    "/{batch_id}/results",
    response_class=Response,
    responses={
        200: {
            "description": "One JSON object a line, from index `after` to the first unfinished item; once the"
            " batch is over, all rows there are.",
            "headers": openapi.REQUEST_ID,
            "content": {replies.NDJSON: {"schema": {"$ref": "#/components/schemas/BatchRow"}}},
        },
        **problems(400, 404, 422, 503),
    },
    summary="Read a batch's results",
)
async def get_results(
    request: Request,
    batch_id: BatchId,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
) -> Response:
    parts = service(request).client.result_parts(batch_id, after=after, limit=limit)
    lines = (replies.row_lines(part) async for part in parts)
    return await replies.streamed(lines, media_type=replies.NDJSON)


@router.get(
    "/{batch_id}/events",
    response_class=Response,
    responses={
        200: {
            "description": "The batch's results and progress as they come.",
            "headers": openapi.REQUEST_ID,
            "content": {MEDIA_TYPE: {"schema": {"type": "string"}, "example": _EVENTS}},
        },
        **problems(400, 404, 422, 503),
    },
    summary="Stream a batch's results",
)
async def get_batch_events(
    request: Request,
    batch_id: BatchId,
    last_event_id: LastEventId = None,
    after: AfterEvent = None,
) -> Response:
    shared = service(request)
    batch = await shared.client.batch(batch_id)
    last = await shared.client.batches.last_row(batch.batch_id)
    start = stream_start(last_event_id, after, last, "the batch's last row")
    return EventStream(
        shared.client.batch_events(batch_id, after=start),
        streams=shared.streams,
        ping_seconds=shared.settings.api_ping_seconds,
        write=replies.batch_event,
    )


@router.post(
    "/{batch_id}/cancel",
    responses={
        200: answer(batch_schemas.Batch, "The batch; items that run are finished or stopped shortly."),
        **problems(404, 409, 422, 503),
    },
    summary="Cancel a batch",
)
async def cancel_batch(request: Request, batch_id: BatchId) -> Response:
    return replies.reply(replies.batch(await service(request).client.cancel_batch(batch_id)))


@router.post(
    "/{batch_id}/pause",
    responses={
        200: answer(batch_schemas.Batch, "The batch; no further item begins."),
        **problems(404, 409, 422, 503),
    },
    summary="Pause a batch",
)
async def pause_batch(request: Request, batch_id: BatchId) -> Response:
    return replies.reply(replies.batch(await service(request).client.pause_batch(batch_id)))


@router.post(
    "/{batch_id}/resume",
    responses={200: answer(batch_schemas.Batch, "The batch; it goes on."), **problems(404, 409, 422, 503)},
    summary="Let a paused batch go on",
)
async def resume_batch(request: Request, batch_id: BatchId) -> Response:
    return replies.reply(replies.batch(await service(request).client.resume_batch(batch_id)))


@router.post(
    "/{batch_id}/retry",
    responses={
        200: answer(batch_schemas.Batch, "The batch; what has failed in it, or was never run, runs again."),
        **problems(404, 409, 422, 503),
    },
    summary="Run again what has failed in a batch",
)
async def retry_batch(request: Request, batch_id: BatchId) -> Response:
    return replies.reply(replies.batch(await service(request).client.retry_batch(batch_id)))


@router.delete(
    "/{batch_id}",
    responses={
        200: answer(batch_schemas.BatchDeleted, "The batch is gone; its files stay."),
        **problems(404, 409, 422, 503),
    },
    summary="Delete a batch that is over",
)
async def delete_batch(request: Request, batch_id: BatchId) -> Response:
    await service(request).client.delete_batch(batch_id)
    return replies.reply({"id": batch_id, "object": "batch", "deleted": True})
