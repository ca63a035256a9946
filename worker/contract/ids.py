"""Ids: the first two digits behind the prefix are the shard, so that an id says where to look."""

from __future__ import annotations

import hashlib
import re
import secrets
import zlib
from typing import Final

from aiforge.core.names import CONVERSATION_ID

SHARDS: Final = 64
_BATCH_PREFIX: Final = "batch_"
_FILE_PREFIX: Final = "file-"
_SCHEDULE_PREFIX: Final = "sched_"
_SHARDED: Final = r"(?:[0-5][0-9]|6[0-3])[0-9a-f]{20}"
_TURN_ID: Final = re.compile(_SHARDED)
_BATCH_ID: Final = re.compile(_BATCH_PREFIX + _SHARDED)
_FILE_ID: Final = re.compile(_FILE_PREFIX + _SHARDED)
_SCHEDULE_ID: Final = re.compile(_SCHEDULE_PREFIX + _SHARDED)


def shard_of(tenant: str, name: str) -> int:
    """The shard of a tenant's conversation or batch; never changes for a given pair."""
    return zlib.crc32(f"{tenant}:{name}".encode()) % SHARDS


def new_turn_id(shard: int) -> str:
    """Two digits of shard, then 20 random hex digits."""
    return f"{shard:02d}{secrets.token_hex(10)}"


def new_batch_id(tenant: str) -> str:
    """`batch_`, two digits of shard, then 20 random hex digits."""
    return batch_id_of(tenant, secrets.token_hex(10))


def batch_id_of(tenant: str, digits: str) -> str:
    """The id of a batch that ends in these 20 hex digits."""
    return f"{_BATCH_PREFIX}{shard_of(tenant, digits):02d}{digits}"


def keyed_batch_id(tenant: str, key: str) -> str:
    """The id that follows from an idempotency key."""
    return batch_id_of(tenant, hashlib.sha256(f"{tenant}\0{key}".encode()).hexdigest()[:20])


def output_file_id(tenant: str, batch_id: str, run: int, kind: str) -> str:
    """The id of a file that a batch's results are written to: the same, however often that is begun."""
    return _file_id(tenant, hashlib.sha256(f"{batch_id} {run} {kind}".encode()).hexdigest()[:20])


def new_file_id(tenant: str) -> str:
    """`file-`, two digits of shard, then 20 random hex digits."""
    return _file_id(tenant, secrets.token_hex(10))


def _file_id(tenant: str, digits: str) -> str:
    return f"{_FILE_PREFIX}{shard_of(tenant, digits):02d}{digits}"


def schedule_id_of(tenant: str, conversation_id: str | None, digits: str) -> str:
    """`sched_`, two digits of its own or its conversation's shard, then these 20 hex digits."""
    return f"{_SCHEDULE_PREFIX}{shard_of(tenant, conversation_id or digits):02d}{digits}"


def shard_of_id(work: str) -> int:
    """The shard that a turn id, batch id, slice id, file id or schedule id carries."""
    bare = work.removeprefix(_BATCH_PREFIX).removeprefix(_FILE_PREFIX).removeprefix(_SCHEDULE_PREFIX)
    return int(bare[:2])


def is_turn_id(text: str) -> bool:
    """Whether this can be a turn's id."""
    return _TURN_ID.fullmatch(text) is not None


def is_batch_id(text: str) -> bool:
    """Whether this can be a batch's id."""
    return _BATCH_ID.fullmatch(text) is not None


def is_file_id(text: str) -> bool:
    """Whether this can be a file's id."""
    return _FILE_ID.fullmatch(text) is not None


def is_schedule_id(text: str) -> bool:
    """Whether this can be a schedule's id."""
    return _SCHEDULE_ID.fullmatch(text) is not None


def is_conversation_id(text: str) -> bool:
    """Whether this can be a conversation's id, issued or the caller's own."""
    return CONVERSATION_ID.fullmatch(text) is not None


def is_tenant(text: str) -> bool:
    """Whether this can be a tenant's name."""
    return CONVERSATION_ID.fullmatch(text) is not None


def is_batch(work: str) -> bool:
    """Whether a member of a shard's index is a batch or one of its slices."""
    return work.startswith(_BATCH_PREFIX)
