"""Where a turn stands: its id, tenant and conversation, from which all keys of it are made."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from worker.contract.ids import new_turn_id, shard_of


class Place(NamedTuple):
    """Where a turn stands: what every key of it is made from."""

    turn_id: str
    tenant: str
    conversation_id: str


def new_place(tenant: str, conversation_id: str) -> Place:
    """A new turn of a conversation."""
    return Place(new_turn_id(shard_of(tenant, conversation_id)), tenant, conversation_id)


def keyed_place(tenant: str, conversation_id: str | None, key: str) -> Place:
    """The turn of an idempotency key: its ids follow from the key, so that a repetition meets it again."""
    digest = hashlib.sha256("\x00".join((tenant, conversation_id or "", key)).encode()).hexdigest()
    conversation = conversation_id or digest[20:36]
    return Place(f"{shard_of(tenant, conversation):02d}{digest[:20]}", tenant, conversation)
