"""Curator's batch mode for OpenAI, with nothing changed but the address."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

import httpx
import pytest

from aiforge.testing import FakeProvider, Gate, Reply, failure
from tests.clients.conftest import PROGRAM_SECONDS, Foreign
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.clients, pytest.mark.timeout(4 * PROGRAM_SECONDS)]
ROWS: Final = 250
BATCHES: Final = 3
ODD: Final = "a\u2028b\u2029c\x85d"
"""Curator splits a file of results by `str.splitlines`."""


def answer(text: str) -> str:
    return json.dumps({"text": text}, ensure_ascii=False)


def batches(foreign: Foreign) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(f"{foreign.base_url}/batches", params={"limit": 100}).json()[
        "data"
    ]
    return found


def noted(foreign: Foreign) -> int:
    """How many batches a run that is under way has noted, so that the next one finds them."""
    for path in foreign.home.rglob("batch_objects.jsonl"):
        with contextlib.suppress(ValueError):
            return len(json.loads(path.read_text())["submitted_batches"])
    return 0


def test_rows_that_fail_are_asked_again(foreign: Foreign, provider: FakeProvider) -> None:
    provider.when("question 7.", failure(400), times=1)
    provider.when("question 113.", failure(400))
    provider.when("question 20.", answer(ODD))
    provider.when("question", answer("An answer."))
    found = foreign.run("curator_batches", str(ROWS))
    assert sorted(row["number"] for row in found) == [one for one in range(ROWS) if one != 113]
    said = {row["number"]: row["answer"] for row in found}
    assert (said[7], said[20]) == ("An answer.", ODD)
    asked = [call.question for call in provider.calls]
    assert (len(asked), len(set(asked))) == (ROWS + 3, ROWS)
    assert (asked.count("question 7."), asked.count("question 113.")) == (2, 3)
    posted = [one["request_counts"] for one in reversed(batches(foreign))]
    assert sum(one["total"] for one in posted[:BATCHES]) == ROWS
    assert sorted((one["total"], one["failed"]) for one in posted[BATCHES:]) == [(1, 0), (1, 1), (1, 1)]
    assert {one["status"] for one in batches(foreign)} == {"completed"}
    body = provider.calls[0].body
    assert (body["temperature"], body["max_tokens"]) == (0.5, 100)
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["text"]


def test_a_killed_run_goes_on_and_a_finished_one_asks_nobody(
    foreign: Foreign, provider: FakeProvider
) -> None:
    provider.when("question", Reply(chunks=[Gate("asked"), answer("An answer.")]))
    process = foreign.start("curator_batches", str(ROWS))
    provider.wait_until(lambda: len(provider.calls) > 0, PROGRAM_SECONDS)
    wait_until(lambda: noted(foreign) == BATCHES, PROGRAM_SECONDS)
    process.kill()
    provider.open("asked")
    for _ in range(2):
        found = foreign.run("curator_batches", str(ROWS))
        assert [row["number"] for row in found] == list(range(ROWS))
        assert {row["answer"] for row in found} == {"An answer."}
        assert (len(provider.calls), len(batches(foreign))) == (ROWS, BATCHES)


def test_a_run_is_cancelled(foreign: Foreign, provider: FakeProvider) -> None:
    provider.when("question", Reply(chunks=[Gate("never"), answer("An answer.")]))
    process = foreign.start("curator_batches", str(ROWS))
    wait_until(lambda: noted(foreign) == BATCHES, PROGRAM_SECONDS)
    process.kill()
    foreign.run("curator_batches", str(ROWS), "cancel")
    assert {one["status"] for one in batches(foreign)} <= {"cancelling", "cancelled"}
