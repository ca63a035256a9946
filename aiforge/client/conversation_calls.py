"""The requests about conversations: their messages, their past, their queue and their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from aiforge.client.call import ANSWER_SECONDS, Call, Page, as_json, one, pages, path_of, said
from aiforge.client.results import Conversation, Diff, Erasure, Export, Message, Queue, Version

PAGE_CONVERSATIONS: Final = 100
PAGE_MESSAGES: Final = 100
PAGE_VERSIONS: Final = 100
DOCUMENT_SECONDS: Final = 5 * ANSWER_SECONDS
"""For a conversation that is sent or read as a whole."""
_NAME: Final = "conversations"
_PATH: Final = f"/v1/{_NAME}"
_conversation: Final = one(Conversation)
_queue: Final = one(Queue)
_erasure: Final = one(Erasure)
_export: Final = one(Export)
_diff: Final = one(Diff)


def create(conversation_id: str | None, fields: Mapping[str, Any]) -> Call[Conversation]:
    body = as_json(said(conversation_id=conversation_id, **fields))
    return Call("POST", _PATH, _conversation, content=body)


def read(conversation_id: str) -> Call[Conversation]:
    return Call("GET", path_of(_NAME, conversation_id), _conversation)


def latest(
    busy: bool | None, metadata: Mapping[str, str] | None, before: str | None = None
) -> Call[Page[Conversation]]:
    noted = [f"{key}={value}" for key, value in metadata.items()] if metadata else None
    asked = None if busy is None else str(busy).lower()
    params = said(limit=str(PAGE_CONVERSATIONS), before=before, busy=asked, metadata=noted)
    return pages(Conversation, _PATH, params, lambda answer: latest(busy, metadata, answer.next))


def messages(conversation_id: str, after: int) -> Call[Page[Message]]:
    return pages(
        Message,
        path_of(_NAME, conversation_id, "messages"),
        {"after": str(after), "limit": str(PAGE_MESSAGES)},
        lambda answer: messages(conversation_id, after + len(answer.data)),
    )


def change(conversation_id: str, changes: Mapping[str, Any], if_revision: int | None) -> Call[Conversation]:
    body = as_json({**changes, **said(if_revision=if_revision)})
    path = path_of(_NAME, conversation_id)
    return Call("PATCH", path, _conversation, content=body, settled=if_revision is None)


def queue(conversation_id: str) -> Call[Queue]:
    return Call("GET", path_of(_NAME, conversation_id, "queue"), _queue)


def reorder(conversation_id: str, expected: Sequence[str], turns: Sequence[str]) -> Call[Queue]:
    body = as_json({"expected": list(expected), "turns": list(turns)})
    return Call("PUT", path_of(_NAME, conversation_id, "queue"), _queue, content=body)


def versions(conversation_id: str, after: int) -> Call[Page[Version]]:
    return pages(
        Version,
        path_of(_NAME, conversation_id, "versions"),
        {"after": str(after), "limit": str(PAGE_VERSIONS)},
        lambda answer: versions(conversation_id, answer.data[-1].version),
    )


def checkout(conversation_id: str, version: int, if_version: int | None) -> Call[Conversation]:
    body = as_json(said(version=version, if_version=if_version))
    return Call("POST", path_of(_NAME, conversation_id, "checkout"), _conversation, content=body)


def branch(
    conversation_id: str, version: int | None, new_id: str | None, changes: Mapping[str, Any]
) -> Call[Conversation]:
    body = as_json(said(version=version, conversation_id=new_id, settings=dict(changes)))
    return Call("POST", path_of(_NAME, conversation_id, "branch"), _conversation, content=body)


def diff(conversation_id: str, old: int, new: int) -> Call[Diff]:
    params = {"from": str(old), "to": str(new)}
    return Call("GET", path_of(_NAME, conversation_id, "diff"), _diff, params=params)


def compact(conversation_id: str, version: int | None, keep: int | None) -> Call[Conversation]:
    body = as_json(said(version=version, keep=keep))
    path = path_of(_NAME, conversation_id, "compact")
    return Call("POST", path, _conversation, content=body, settled=True)


def export(conversation_id: str) -> Call[Export]:
    return Call("GET", path_of(_NAME, conversation_id, "export"), _export, seconds=DOCUMENT_SECONDS)


def import_document(document: Export, conversation_id: str | None) -> Call[Conversation]:
    body = as_json(said(**msgspec.structs.asdict(document) | said(conversation_id=conversation_id)))
    return Call("POST", f"{_PATH}/import", _conversation, content=body, seconds=DOCUMENT_SECONDS)


def erase(conversation_id: str) -> Call[Erasure]:
    return Call("DELETE", path_of(_NAME, conversation_id), _erasure)
