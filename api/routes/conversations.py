"""Conversations: open one, read it, read its messages."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from api import openapi, replies, schemas
from api.bodies import CONVERSATION, ConversationBody, decode
from api.openapi import answer, problems
from api.params import After, ConversationId, known_query, no_key
from api.state import service

router = APIRouter(prefix="/v1/conversations", tags=["conversations"], dependencies=[Depends(known_query)])


@router.post(
    "",
    dependencies=[Depends(no_key)],
    status_code=201,
    responses={
        201: answer(schemas.Conversation, "The conversation.", openapi.location("conversation")),
        **problems(400, 409, 413, 415, 422, 503),
    },
    openapi_extra=openapi.body(schemas.ConversationBody, required=False),
    summary="Open a conversation",
)
async def post_conversation(request: Request) -> Response:
    data = await request.body()
    body = decode(data, CONVERSATION) if data else ConversationBody()
    made = await service(request).client.create_conversation(
        body.settings(), conversation_id=body.conversation_id
    )
    headers = {"Location": f"/v1/conversations/{made.conversation_id}"}
    return replies.reply(made, status=201, headers=headers)


@router.get(
    "/{conversation_id}",
    responses={200: answer(schemas.Conversation, "The conversation."), **problems(404, 422, 503)},
    summary="Read a conversation",
)
async def get_conversation(request: Request, conversation_id: ConversationId) -> Response:
    return replies.reply(await service(request).client.conversation(conversation_id))


@router.get(
    "/{conversation_id}/messages",
    responses={200: answer(schemas.Messages, "Messages, oldest first."), **problems(400, 404, 422, 503)},
    summary="Read a conversation's messages",
)
async def get_messages(
    request: Request,
    conversation_id: ConversationId,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    found = await service(request).client.messages(conversation_id, after=after, limit=limit + 1)
    return replies.reply(replies.messages(found[:limit], has_more=len(found) > limit))
