"""A conversation's settings and past: change them, list versions, go back, branch off, compare, fold up."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from api import history_schemas, openapi, replies, schemas
from api.bodies import BRANCH, CHANGE, CHECKOUT, COMPACT, BranchBody, CompactBody, decode
from api.openapi import answer, problems
from api.params import After, ConversationId, Limit, known_query, no_key
from api.state import service

VersionNumber = Annotated[int, Query(ge=0, le=2**53)]

router = APIRouter(
    prefix="/v1/conversations/{conversation_id}", tags=["conversations"], dependencies=[Depends(known_query)]
)


@router.patch(
    "",
    dependencies=[Depends(no_key)],
    responses={
        200: answer(schemas.Conversation, "The conversation with its new settings."),
        **problems(400, 404, 409, 413, 415, 422, 503),
    },
    openapi_extra=openapi.body(history_schemas.ChangeBody),
    summary="Change a conversation's settings",
)
async def patch_conversation(request: Request, conversation_id: ConversationId) -> Response:
    body = decode(await request.body(), CHANGE)
    changed = await service(request).client.history.change(
        conversation_id, body.changes(), expected=body.if_revision
    )
    return replies.reply(changed)


@router.get(
    "/versions",
    responses={
        200: answer(history_schemas.Versions, "Versions that are kept, oldest first."),
        **problems(400, 404, 422, 503),
    },
    summary="List a conversation's versions",
)
async def get_versions(
    request: Request,
    conversation_id: ConversationId,
    after: After = 0,
    limit: Limit = 100,
) -> Response:
    found = await service(request).client.history.versions(conversation_id, after=after, limit=limit + 1)
    return replies.reply(replies.listed(found[:limit], has_more=len(found) > limit))


@router.post(
    "/checkout",
    dependencies=[Depends(no_key)],
    responses={
        200: answer(schemas.Conversation, "The conversation, at a new version that is like the old one."),
        **problems(400, 404, 409, 413, 415, 422, 503),
    },
    openapi_extra=openapi.body(history_schemas.CheckoutBody),
    summary="Make a conversation again what it was at a version",
)
async def checkout(request: Request, conversation_id: ConversationId) -> Response:
    """What came after that version leaves memory and stays in the history: it can be checked out again.

    409 `conversation_busy` while a turn runs or waits, `version_compacted` below the baseline.
    """
    body = decode(await request.body(), CHECKOUT)
    moved = await service(request).client.history.checkout(
        conversation_id, body.version, expected=body.if_version
    )
    return replies.reply(moved)


@router.post(
    "/branch",
    dependencies=[Depends(no_key)],
    status_code=201,
    responses={
        201: answer(schemas.Conversation, "The new conversation.", openapi.location("conversation")),
        **problems(400, 404, 409, 413, 415, 422, 503),
    },
    openapi_extra=openapi.body(history_schemas.BranchBody, required=False),
    summary="Begin a new conversation where this one is or was",
)
async def branch(request: Request, conversation_id: ConversationId) -> Response:
    """It has the messages up to that version and, but for what the body says, the settings."""
    body = decode(await request.body(), BRANCH, default=BranchBody())
    made = await service(request).client.history.branch(
        conversation_id, version=body.version, new_id=body.conversation_id, changes=body.settings
    )
    return replies.made_conversation(made)


@router.get(
    "/diff",
    responses={
        200: answer(history_schemas.Diff, "Messages, oldest first."),
        **problems(400, 404, 409, 422, 503),
    },
    summary="Compare two versions of a conversation",
)
async def diff(
    request: Request,
    conversation_id: ConversationId,
    old: Annotated[VersionNumber, Query(alias="from", description="The version to compare with.")],
    new: Annotated[VersionNumber, Query(alias="to", description="The version that is compared.")],
) -> Response:
    return replies.reply(await service(request).client.history.diff(conversation_id, old, new))


@router.post(
    "/compact",
    dependencies=[Depends(no_key)],
    responses={
        200: answer(schemas.Conversation, "The conversation with its new baseline."),
        **problems(400, 404, 409, 413, 415, 422, 503),
    },
    openapi_extra=openapi.body(history_schemas.CompactBody, required=False),
    summary="Fold a conversation's oldest versions into one",
)
async def compact(request: Request, conversation_id: ConversationId) -> Response:
    """Its messages stay. What is older than the new baseline can no longer be checked out.

    409 `version_needed` when a later version goes back below it.
    """
    body = decode(await request.body(), COMPACT, default=CompactBody())
    body.check()
    folded = await service(request).client.history.compact(
        conversation_id, version=body.version, keep=body.keep or 0
    )
    return replies.reply(folded)
