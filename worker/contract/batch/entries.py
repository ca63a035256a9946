"""The items of a batch as they are stored: what repeats or continues an earlier one says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from worker.contract import records
from worker.contract.batch.sameness import digest_of, item_question
from worker.contract.schemas import BatchItem, BatchRequest
from worker.contract.server.link import Argument

UPLOAD_ITEMS: Final = 1_000
UPLOAD_BYTES: Final = 4 * 1024 * 1024
"""One call stores no more than this, or one item: it has to arrive within a command's time."""


def parts_of(entries: Iterable[bytes]) -> Iterator[list[bytes]]:
    """What is stored by one call each."""
    part: list[bytes] = []
    size = 0
    for encoded in entries:
        if part and (len(part) == UPLOAD_ITEMS or size + len(encoded) > UPLOAD_BYTES):
            yield part
            part, size = [], 0
        part.append(encoded)
        size += len(encoded)
    if part:
        yield part


def bare(entry: bytes) -> bytes:
    """An item's JSON, without what stands before it where it is a turn."""
    return entry.partition(b" ")[2] if entry.startswith(b">") else entry


class _Talk(msgspec.Struct):
    conversation: str


def conversations_of(offset: int, entries: Sequence[bytes]) -> list[Argument]:
    """Index and conversation of each entry that is a turn, one behind the other."""
    found: list[Argument] = []
    for index, entry in enumerate(entries, start=offset):
        if entry.startswith(b">"):
            found += [index, msgspec.json.decode(bare(entry), type=_Talk).conversation]
    return found


def continued(earlier: int | None, item: BatchItem) -> bytes:
    """The entry of an item that is a turn, behind the one of that index in its conversation, if any."""
    return b">%b %b" % (b"" if earlier is None else b"%d" % earlier, records.encode(item))


def entries_of(request: BatchRequest) -> Iterator[bytes]:
    """Items as they are stored; what is asked twice and may be answered once, once."""
    seen = Repeats()
    latest: dict[str, int] = {}
    for index, item in enumerate(request.items):
        if item.conversation is not None:
            yield continued(latest.get(item.conversation), item)
            latest[item.conversation] = index
            continue
        temperature = request.temperature if item.temperature is None else item.temperature
        tools = request.tools if item.tools is None else item.tools
        if request.dedupe or request.cache_ttl or (temperature == 0 and not tools):
            first = seen.first(index, item_question(item, request))
            if first is not None:
                yield repeated(first, item.id)
                continue
        yield records.encode(item)


class Repeats:
    """What was asked before, by its digest: about 130 bytes for each."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}

    def first(self, index: int, question: dict[str, Any]) -> int | None:
        """The index under which the same was asked first, None when this is it."""
        found = self._seen.setdefault(bytes.fromhex(digest_of(question)), index)
        return None if found == index else found


def repeated(first: int, own: str | None) -> bytes:
    """The entry, and the row, of an item that repeats an earlier one."""
    return b"=%d %s" % (first, records.encode(own))
