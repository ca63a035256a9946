"""The requests about a conversation's past and about changing its settings; like those in `calls`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aiforge.client.calls import Call, as_json, conversation_path, one
from aiforge.client.results import Conversation, Diff, Version

PAGE_VERSIONS: Final = 100


class Versions(msgspec.Struct):
    """Some versions of a conversation, and whether there are more."""

    data: list[Version]
    has_more: bool = False


_conversation: Final = one(Conversation)
_versions: Final = one(Versions)
_diff: Final = one(Diff)


def change(conversation_id: str, changes: Mapping[str, Any], if_revision: int | None) -> Call[Conversation]:
    expected = {} if if_revision is None else {"if_revision": if_revision}
    return Call(
        "PATCH",
        conversation_path(conversation_id),
        _conversation,
        content=as_json({**changes, **expected}),
        settled=if_revision is None,
    )


def versions(conversation_id: str, after: int) -> Call[Versions]:
    params = {"after": str(after), "limit": str(PAGE_VERSIONS)}
    return Call("GET", conversation_path(conversation_id, "versions"), _versions, params=params)


def checkout(conversation_id: str, version: int, if_version: int | None) -> Call[Conversation]:
    expected = {} if if_version is None else {"if_version": if_version}
    path = conversation_path(conversation_id, "checkout")
    return Call("POST", path, _conversation, content=as_json({"version": version, **expected}))


def branch(
    conversation_id: str, version: int | None, new_id: str | None, changes: Mapping[str, Any]
) -> Call[Conversation]:
    named = {"version": version, "conversation_id": new_id}
    given = {name: value for name, value in named.items() if value is not None}
    body = as_json({**given, "settings": dict(changes)})
    return Call("POST", conversation_path(conversation_id, "branch"), _conversation, content=body)


def diff(conversation_id: str, old: int, new: int) -> Call[Diff]:
    params = {"from": str(old), "to": str(new)}
    return Call("GET", conversation_path(conversation_id, "diff"), _diff, params=params)


def compact(conversation_id: str, version: int | None, keep: int | None) -> Call[Conversation]:
    named = {"version": version, "keep": keep}
    body = as_json({name: value for name, value in named.items() if value is not None})
    path = conversation_path(conversation_id, "compact")
    return Call("POST", path, _conversation, content=body, settled=True)
