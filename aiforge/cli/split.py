"""How many questions become batches that the service takes, and what each of them may cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import ROUND_DOWN, Decimal
from typing import Final

from aiforge.cli.errors import UsageError
from aiforge.cli.output import as_json
from aiforge.cli.questions import FINEST_USD
from aiforge.client import Item
from aiforge.client.options import BatchOptions
from aiforge.questions.ids import short
from aiforge.questions.question import Question

BATCH_ITEMS: Final = 50_000
"""The most that the service takes in one batch."""
BATCH_BYTES: Final = 8 * 1024 * 1024
"""Of questions in one batch: a few times that is held while it is sent."""


def share(options: BatchOptions, size: int, asked: int) -> BatchOptions:
    """The options of one batch of several: of the most that all may cost it has its part."""
    most = options.get("max_cost")
    if not most:
        return options
    part = (Decimal(most) * size / asked).quantize(FINEST_USD, rounding=ROUND_DOWN)
    return {**options, "max_cost": f"{part.normalize():f}"}


def must_go_in_order(rows: Iterable[Question]) -> None:
    """Raises UsageError for a conversation that would be spread over batches, which run side by side."""
    known: dict[bytes, int] = {}
    for number, items in enumerate(split(rows)):
        for item in items:
            if item.conversation is not None and known.setdefault(short(item.conversation), number) != number:
                raise UsageError(
                    f"conversation {item.conversation!r} is spread over more than one batch of"
                    f" {BATCH_ITEMS:,} questions or {BATCH_BYTES // 1024**2} MiB, and batches run side by"
                    " side: sort the file by conversation, or split it"
                )


def split(rows: Iterable[Question]) -> Iterator[list[Item]]:
    """Items that the service takes as one batch each."""
    items: list[Item] = []
    size = 0
    for row in rows:
        weight = len(as_json(row.message))
        if items and (len(items) == BATCH_ITEMS or size + weight > BATCH_BYTES):
            yield items
            items, size = [], 0
        items.append(Item(message=row.message, id=row.id, conversation=row.conversation, **row.options))
        size += weight
    if items:
        yield items
