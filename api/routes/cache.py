"""Answers that are kept for later batches: they can be erased."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from api import batch_schemas, replies
from api.openapi import answer, problems
from api.params import known_query
from api.state import service

router = APIRouter(prefix="/v1/cache", tags=["batches"], dependencies=[Depends(known_query)])


@router.delete(
    "",
    responses={
        200: answer(
            batch_schemas.CacheErased,
            "Nothing is kept any more; what is asked just now will not be kept. Batches keep their rows.",
        ),
        **problems(400, 503),
    },
    summary="Erase the answers that are kept for later batches",
)
async def delete_cache(request: Request) -> Response:
    erased = await service(request).client.forget_answers()
    return replies.reply({"object": "cache", "deleted": True, "answers": erased})
