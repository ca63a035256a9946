"""Batches: post one, watch it, read its results, cancel it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from api import batch_schemas, openapi, replies
from api.bodies import BATCH, decode
from api.openapi import answer, problems
from api.params import After, BatchId, known_query, no_key
from api.state import service

PATH = "/v1/batches"

router = APIRouter(prefix=PATH, tags=["batches"], dependencies=[Depends(known_query)])


@router.post(
    "",
    dependencies=[Depends(no_key)],
    responses={
        200: answer(batch_schemas.Batch, "The batch is stored and will run.", openapi.location("batch")),
        **problems(400, 413, 415, 422, 503),
    },
    openapi_extra=openapi.body(batch_schemas.BatchBody),
    summary="Post a batch",
)
async def post_batch(request: Request) -> Response:
    body = decode(await request.body(), BATCH)
    made = await service(request).client.submit_batch(body.request())
    return replies.reply(replies.batch(made), headers={"Location": f"{PATH}/{made.batch_id}"})


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
    return replies.rows(await service(request).client.results(batch_id, after=after, limit=limit))


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
