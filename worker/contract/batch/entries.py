"""The items of a batch as they are stored: what repeats or continues an earlier one says so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from worker.contract import records
from worker.contract.schemas import BatchRequest


def bare(entry: bytes) -> bytes:
    """An item's JSON, without what stands before it where it is a turn."""
    return entry.partition(b" ")[2] if entry.startswith(b">") else entry


def _digits(index: int | None) -> bytes:
    return b"" if index is None else b"%d" % index


def entries_of(request: BatchRequest) -> Iterator[bytes]:
    """Items as they are stored; what is asked twice and may be answered once, once."""
    seen = Repeats()
    latest: dict[str, int] = {}
    for index, item in enumerate(request.items):
        if item.conversation is not None:
            yield b">%b %b" % (_digits(latest.get(item.conversation)), records.encode(item))
            latest[item.conversation] = index
            continue
        temperature = request.temperature if item.temperature is None else item.temperature
        tools = request.tools if item.tools is None else item.tools
        if request.dedupe or (temperature == 0 and not tools):
            first = seen.first(index, records.encode(msgspec.structs.replace(item, id=None)))
            if first is not None:
                yield repeated(first, item.id)
                continue
        yield records.encode(item)


class Repeats:
    """What was asked before, by its digest: about 130 bytes for each."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}

    def first(self, index: int, asked: bytes) -> int | None:
        """The index under which the same was asked first, None when this is it."""
        found = self._seen.setdefault(hashlib.blake2b(asked, digest_size=16).digest(), index)
        return None if found == index else found


def repeated(first: int, own: str | None) -> bytes:
    """The entry, and the row, of an item that repeats an earlier one."""
    return b"=%d %s" % (first, records.encode(own))
