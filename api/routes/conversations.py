"""Conversations: open one, list them, read one, put its queue in order, take it elsewhere, erase it."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from api import history_schemas, openapi, replies, schemas
from api.bodies import CONVERSATION, IMPORT, QUEUE, ConversationBody, decode
from api.errors import Problem
from api.openapi import answer, problems
from api.params import After, ConversationId, Limit, cursor_of, known_query, no_key
from api.state import service

IMPORT_PATH: Final = "/v1/conversations/import"
_NO_NOTES: Final[list[str]] = []
_CURSOR: Final = r"^[0-9]{1,15}:[A-Za-z0-9._-]{1,128}$"

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
    body = decode(await request.body(), CONVERSATION, default=ConversationBody())
    made = await service(request).client.create_conversation(
        body.settings(), conversation_id=body.conversation_id
    )
    return replies.made_conversation(made)


@router.get(
    "",
    responses={200: answer(schemas.Conversations, "The newest first."), **problems(400, 503)},
    summary="List conversations",
)
async def get_conversations(
    request: Request,
    before: Annotated[
        str | None, Query(pattern=_CURSOR, description="`next` of the page before this one.")
    ] = None,
    limit: Limit = 100,
    busy: Annotated[bool | None, Query(description="With a turn that runs or waits, or without.")] = None,
    metadata: Annotated[
        list[str],
        Query(description="`key=value`: with this among their metadata. May be given more than once."),
    ] = _NO_NOTES,
) -> Response:
    """With `busy` or `metadata` a page may be short, even empty, while `next` says that there is more."""
    page = await service(request).client.history.page(
        before=cursor_of(before), limit=limit, busy=busy, metadata=_notes(metadata)
    )
    return replies.reply(replies.conversations(page))


def _notes(given: list[str]) -> dict[str, str]:
    notes: dict[str, str] = {}
    for note in given:
        key, sign, value = note.partition("=")
        if not sign or key in notes:
            raise Problem(400, "invalid_value", "metadata: key=value, each key once", param="metadata")
        notes[key] = value
    return notes


@router.post(
    "/import",
    dependencies=[Depends(no_key)],
    status_code=201,
    responses={
        201: answer(schemas.Conversation, "The conversation.", openapi.location("conversation")),
        **problems(400, 409, 413, 415, 422, 503),
    },
    openapi_extra=openapi.body(history_schemas.ConversationExport),
    summary="Make an exported conversation anew",
)
async def import_conversation(request: Request) -> Response:
    document = decode(await request.body(), IMPORT)
    made = await service(request).client.import_conversation(document)
    return replies.made_conversation(made)


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
    limit: Limit = 100,
) -> Response:
    found = await service(request).client.messages(conversation_id, after=after, limit=limit + 1)
    return replies.reply(replies.listed(found[:limit], has_more=len(found) > limit))


@router.get(
    "/{conversation_id}/export",
    responses={
        200: answer(history_schemas.ConversationExport, "The conversation as one document."),
        **problems(404, 422, 503),
    },
    summary="Export a conversation with all its messages",
)
async def export_conversation(request: Request, conversation_id: ConversationId) -> Response:
    return replies.reply(await service(request).client.export(conversation_id))


@router.delete(
    "/{conversation_id}",
    responses={200: answer(schemas.Erasure, "What was erased."), **problems(404, 422, 503)},
    summary="Erase a conversation with all its turns",
)
async def delete_conversation(request: Request, conversation_id: ConversationId) -> Response:
    return replies.reply(await service(request).client.erase(conversation_id))


@router.get(
    "/{conversation_id}/queue",
    responses={200: answer(schemas.Queue, "Who runs and who waits."), **problems(404, 422, 503)},
    summary="Read a conversation's waiting turns",
)
async def get_queue(request: Request, conversation_id: ConversationId) -> Response:
    return replies.reply(await service(request).client.line(conversation_id))


@router.put(
    "/{conversation_id}/queue",
    responses={
        200: answer(schemas.Queue, "The queue in its new order."),
        **problems(400, 404, 409, 413, 415, 422, 503),
    },
    openapi_extra=openapi.body(schemas.QueueBody),
    summary="Put waiting turns into another order",
)
async def put_queue(request: Request, conversation_id: ConversationId) -> Response:
    body = decode(await request.body(), QUEUE)
    line = await service(request).client.reorder(conversation_id, body.expected, body.turns)
    return replies.reply(line)
