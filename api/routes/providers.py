"""How models fare: limits, cool-downs and circuits that all workers share."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from api import openapi, provider_schemas, replies
from api.openapi import answer, problems
from api.params import known_query
from api.state import service

router = APIRouter(prefix="/v1/providers", tags=["providers"], dependencies=[Depends(known_query)])


@router.get(
    "",
    responses={
        200: answer(provider_schemas.Providers, "Those that were limited or not well within the last hour."),
        **problems(400, 503),
    },
    summary="How models fare with all workers",
)
async def get_providers(request: Request) -> Response:
    found = await service(request).client.providers.all()
    return replies.reply({"object": "list", "data": found})


@router.post(
    "/reset",
    status_code=204,
    responses={
        204: {"description": "The model is called again as if it were well.", "headers": openapi.REQUEST_ID},
        **problems(400, 404, 503),
    },
    response_class=Response,
    summary="Close a model's circuit, and end its cool-down",
)
async def reset_provider(
    request: Request,
    name: Annotated[
        str,
        Query(
            min_length=1,
            max_length=1024,
            description="As the list names it, or without endpoint and provider where that is enough.",
            examples=["openai/gpt-4o-mini"],
        ),
    ],
) -> Response:
    await service(request).client.providers.reset(name)
    return Response(status_code=204)
