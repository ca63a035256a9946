"""Answers that nobody was told of: counted, ever less, and told once."""

from __future__ import annotations

import math
import time

import pytest

from worker.calls.untold import Untold
from worker.contract.calls.providers import MEMORY_SECONDS


def test_older_answers_count_less_and_all_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0

    def clock() -> float:
        return now

    monkeypatch.setattr(time, "monotonic", clock)
    untold = Untold()
    untold.add()
    now += MEMORY_SECONDS
    untold.add()
    now += MEMORY_SECONDS
    assert untold.take() == pytest.approx((math.exp(-2) + math.exp(-1), 2 * MEMORY_SECONDS))
    assert untold.take() == (0.0, 0.0)
    untold.add()
    assert untold.take() == (1.0, 0.0)
