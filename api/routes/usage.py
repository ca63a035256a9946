"""What was used, and what it cost."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from api import replies, usage_schemas
from api.openapi import answer, problems
from api.params import known_query
from api.state import service
from worker.contract.calls.usage import Group

router = APIRouter(prefix="/v1/usage", tags=["usage"], dependencies=[Depends(known_query)])


@router.get(
    "",
    responses={200: answer(usage_schemas.UsageReport, "A row for each group."), **problems(400, 503)},
    summary="Provider calls, tokens and cost by day, provider, model or purpose",
)
async def get_usage(
    request: Request,
    group_by: Annotated[
        list[Group] | None, Query(description="Several may be given; `model` when none is.")
    ] = None,
    first: Annotated[date | None, Query(alias="from", description="The first day, UTC.")] = None,
    last: Annotated[date | None, Query(alias="to", description="The last day; today when left out.")] = None,
) -> Response:
    rows = await service(request).client.usage(
        first=first, last=last, group_by=list(dict.fromkeys(group_by or ["model"]))
    )
    return replies.reply(replies.usage(rows))
