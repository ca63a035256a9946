"""What was used, and what it cost."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from api import replies, usage_schemas
from api.openapi import answer, problems
from api.params import BATCH, ID, TURN, Limit, cursor_of, known_query
from api.state import service
from worker.contract.calls.rows import Cursor, Days
from worker.contract.calls.usage import Group

_CURSOR: Final = r"^[0-9]{1,15}:(batch_)?[0-9]{2}[0-9a-f]{20}(\.[0-9a-f]{1,32}(\.[0-9]{1,10}){1,2})?$"

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


@router.get(
    "/calls",
    responses={
        200: answer(usage_schemas.LedgerRows, "Some of the ledger's rows, the oldest first."),
        **problems(400, 404, 422, 503),
    },
    summary="Provider calls one by one",
)
async def get_calls(
    request: Request,
    *,
    turn_id: Annotated[str | None, Query(pattern=TURN, description="Those of a turn.")] = None,
    batch_id: Annotated[str | None, Query(pattern=BATCH, description="Those of a batch.")] = None,
    conversation_id: Annotated[
        str | None, Query(pattern=ID, max_length=128, description="Those of a conversation's turns.")
    ] = None,
    first: Annotated[date | None, Query(alias="from", description="The first day, UTC.")] = None,
    last: Annotated[date | None, Query(alias="to", description="The last day, UTC.")] = None,
    after: Annotated[
        str | None, Query(pattern=_CURSOR, description="`next` of the page before this one.")
    ] = None,
    limit: Limit = 100,
) -> Response:
    """The ledger's rows of a turn, a batch or a conversation; without one of these all there are, turn by
    turn and batch by batch in the order of their ids, where a page may be short, even empty, while `next`
    says that there is more. Items of a batch that continue a conversation are turns: their calls are the
    turn's.

    A row lives as long as its turn or batch: for a time after the end, and no longer than the conversation.
    The sums of `/v1/usage` are kept for 400 days."""
    behind = cursor_of(after)
    page = await service(request).client.ledger.page(
        turn_id=turn_id,
        batch_id=batch_id,
        conversation_id=conversation_id,
        days=Days(first, last),
        after=None if behind is None else Cursor(*behind),
        limit=limit,
    )
    return replies.reply(replies.ledger(page))
