"""What a process needs for as long as it lives begins again, whatever it dies of."""

from __future__ import annotations

import logging

import pytest

from worker.loop import keep_up

pytestmark = pytest.mark.anyio


async def test_a_task_that_dies_is_logged_and_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    deaths: list[Exception] = [KeyError("no such key"), RecursionError()]

    async def task() -> None:
        if deaths:
            raise deaths.pop()

    with caplog.at_level(logging.ERROR):
        await keep_up("beat", task)
    assert [(record.message, record.__dict__["reason"]) for record in caplog.records] == [
        ("upkeep_failed", "beat")
    ] * 2
