"""Names: every key of a turn on one slot, every id from one alphabet."""

from __future__ import annotations

import re

import pytest
from redis.crc import key_slot

from tests.support.leaks import documented
from worker.contract.ids import (
    SHARDS,
    is_batch_id,
    is_conversation_id,
    is_turn_id,
    new_batch_id,
    new_turn_id,
    shard_of,
    shard_of_id,
)
from worker.contract.keys import Keys

KEYS = Keys("test-keys")


def test_every_key_of_a_turn_has_one_slot() -> None:
    for conversation in ("user-42", "a", "x" * 128, "..", "}{"):
        turn_id = new_turn_id(shard_of("default", conversation))
        names = KEYS.of_turn(turn_id, "default", conversation)
        assert len(set(names)) == 17
        assert len({key_slot(name.encode()) for name in names}) == 1


def test_every_key_of_a_batch_has_one_slot() -> None:
    names = KEYS.of_batch(new_batch_id("default"))
    assert len(set(names)) == 19
    assert len({key_slot(name.encode()) for name in names}) == 1


def test_shards_are_spread_and_stable() -> None:
    counts = [0] * SHARDS
    for number in range(6_400):
        counts[shard_of("default", f"user-{number}")] += 1
    assert min(counts) > 60
    assert max(counts) < 140
    assert (shard_of("default", "user-42"), shard_of("other", "user-42")) == (41, 0)


def test_ids_carry_their_shard() -> None:
    for shard in range(SHARDS):
        turn_id = new_turn_id(shard)
        assert is_turn_id(turn_id)
        assert shard_of_id(turn_id) == shard
    batch_id = new_batch_id("default")
    assert is_batch_id(batch_id)
    assert shard_of_id(f"{batch_id}/17") == shard_of_id(batch_id)


@pytest.mark.parametrize("text", ["a", "-", "...", ".a", "a.", "..a", ".-.", "x" * 128])
def test_ids_that_a_conversation_can_have(text: str) -> None:
    assert is_conversation_id(text)


@pytest.mark.parametrize(
    "text",
    ["", ".", "..", "../x", "a:b", "*", "{tag}", "a\x00", "x" * 10_000, "é", "a b", "a\n", "64" + "0" * 20],
)
def test_what_is_no_id(text: str) -> None:
    assert not is_turn_id(text)
    assert not is_batch_id(text)
    assert not is_batch_id(f"batch_{text}")
    if not re.fullmatch(r"[0-9]+", text):
        assert not is_conversation_id(text)


def test_every_kind_of_key_is_documented() -> None:
    """The table at the head of `keys.py` names what the class can build."""
    channels = {"events", "control", "idle", "health", "broker_prefix"}
    built = {name for name in vars(Keys) if name not in channels and not name.startswith(("_", "of_"))}
    words = {"conversation": "conv", "messages": "msgs"}
    assert {words.get(name, name) for name in built - {"namespace"}} == documented().keys()
