"""What `/openapi.json` says of a conversation's history, of changed settings, and of it as a document."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from aiforge.core.parameters import MOST_TOKENS
from api.schemas import Body, MemoryMode, StoredMessage
from worker.contract.memory.transfer import EXPORT_VERSION, MAX_MESSAGES
from worker.contract.schemas import DEFAULT_MEMORY_K

_TURN_ID: Final = "171f0a93c2d4e5b6a7f809"
_VERSIONS: Final[list[dict[str, Any]]] = [
    {"version": 1, "kind": "turn", "at": 1767225601.934, "messages": 2, "turn_id": _TURN_ID, "to": None},
    {"version": 2, "kind": "checkout", "at": 1767225660.2, "messages": 0, "turn_id": None, "to": 0},
]


def _shown(*examples: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": list(examples)})


def _posted(*examples: dict[str, Any]) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": list(examples)})


class ConversationChanges(Body):
    """Settings that are to change; what is left out stays, and null is the default again."""

    model_config = _posted({"model": "gpt-4o", "metadata": {"stage": "second", "draft": None}})

    system_prompt: str | None = None
    model: str | None = None
    memory: MemoryMode | None = None
    memory_k: int | None = Field(None, ge=1, le=1000)
    metadata: dict[str, str | None] | None = Field(
        None, description="Keys that are to change; one that is null goes, all others stay."
    )
    temperature: float | None = Field(None, ge=0, le=2)
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    tools: list[str] | None = None
    on_busy: Literal["enqueue", "reject", "interrupt", "rollback"] | None = None
    ttl: int | None = Field(None, ge=1)


class ChangeBody(ConversationChanges):
    """Settings that are to change. A turn that runs keeps those that it was begun with."""

    model_config = _posted({"model": "gpt-4o", "metadata": {"draft": None}, "if_revision": 3})

    if_revision: int | None = Field(
        None, ge=0, description="Refused with 409 conversation_changed unless this is the `revision`."
    )


class CheckoutBody(Body):
    """The version that the conversation is to be again."""

    model_config = _posted({"version": 0, "if_version": 1})

    version: int = Field(ge=0, description="0 is the empty conversation.")
    if_version: int | None = Field(
        None, ge=0, description="Refused with 409 conversation_moved unless this is the latest version."
    )


class BranchBody(Body):
    """Where to branch off, and what the new conversation is to have of its own."""

    model_config = _posted({"version": 1, "settings": {"model": "gpt-4o"}})

    version: int | None = Field(None, ge=0, description="The latest when left out.")
    conversation_id: str | None = Field(None, description="Of the new one; issued when left out.")
    settings: ConversationChanges | None = None


class CompactBody(Body):
    """The version that is to stand for all up to it: one of these, or none for the latest."""

    model_config = _posted({"keep": 10})

    version: int | None = Field(None, ge=0)
    keep: int | None = Field(
        None, ge=0, description="How many of the latest versions stay beside it, and what they go back to."
    )


class Version(BaseModel):
    """A version: what made it, when, and how many messages the conversation has at it."""

    model_config = _shown(*_VERSIONS)

    version: int
    kind: Literal["turn", "checkout", "snapshot"] = Field(
        description="A snapshot stands for all versions up to it, or for what the conversation came with."
    )
    at: float
    messages: int
    turn_id: str | None
    to: int | None = Field(description="The version that a checkout went back to.")


class Versions(BaseModel):
    """A page of versions, oldest first."""

    model_config = _shown({"object": "list", "data": _VERSIONS, "has_more": False})

    object: Literal["list"]
    data: list[Version]
    has_more: bool = Field(description="Whether `after` = the last version that was read gives more.")


class Diff(BaseModel):
    """What has to be taken from one version, and then added, to get another."""

    model_config = _shown(
        {
            "removed": [],
            "added": [
                {"role": "user", "content": "My name is Ada.", "turn_id": _TURN_ID},
                {"role": "assistant", "content": "Hello Ada!", "turn_id": _TURN_ID},
            ],
        }
    )

    removed: list[StoredMessage]
    added: list[StoredMessage]


class ConversationSettings(Body):
    """Settings as they were given; null is the service's own."""

    system_prompt: str | None = None
    model: str | None = None
    memory: MemoryMode = "buffer"
    memory_k: int = Field(DEFAULT_MEMORY_K, ge=1, le=1000)
    metadata: dict[str, str] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    max_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    tools: list[str] | None = None
    on_busy: Literal["enqueue", "reject", "interrupt", "rollback"] = "enqueue"
    ttl: int | None = Field(None, ge=1)


class Summary(Body):
    """What stands for the first so many messages where a conversation remembers by summary."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"messages": 40, "text": "Ada asked for a refund."}]}
    )

    messages: int = Field(ge=1)
    text: str


class ConversationExport(Body):
    """A whole conversation as one document, which can be imported where its id is free.

    It has what the latest version has; turns and older versions are not part of it.
    """

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "version": EXPORT_VERSION,
                    "conversation_id": "user-7",
                    "created_at": 1767225600.128,
                    "settings": {"system_prompt": "You answer for the ACME shop.", "memory_k": 20},
                    "messages": [
                        {"role": "user", "content": "My name is Ada."},
                        {"role": "assistant", "content": "Hello Ada!"},
                    ],
                }
            ]
        },
    )

    version: Literal[1] = Field(description="Of this format.")
    conversation_id: str
    created_at: float
    settings: ConversationSettings
    messages: list[StoredMessage] = Field(
        max_length=MAX_MESSAGES,
        description="In order. Each tool's result belongs to a call of the answer before it, and each call"
        " has one; a `turn_id` leads nowhere after an import.",
    )
    summary: Summary | None = None


UNREFERENCED: Final[tuple[type[BaseModel], ...]] = (ChangeBody, CheckoutBody, BranchBody, CompactBody)
"""Models of bodies that FastAPI neither parses nor writes; the document names them by reference."""
