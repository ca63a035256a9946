"""What is said of a batch that waits for room in a budget."""

from __future__ import annotations

import msgspec

from aiforge.cli.batches import _line
from aiforge.cli.output import when
from aiforge.client import Batch

BATCH = Batch(id="batch_1", status="in_progress", created_at=1.0)


def test_a_batch_that_waits_says_until_when() -> None:
    waiting = msgspec.structs.replace(BATCH, waits_until=7_200.0)
    assert f"  waits for its budget until {when(7_200.0)}  " in _line(waiting)
    assert "waits" not in _line(BATCH)
    assert "waits" not in _line(msgspec.structs.replace(waiting, status="completed"))
