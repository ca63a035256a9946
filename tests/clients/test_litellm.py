"""litellm's files and batches, with nothing changed but the address."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from aiforge.testing import FakeProvider, Reply, failure
from tests.clients.conftest import PROGRAM_SECONDS, Foreign

pytestmark = [pytest.mark.clients, pytest.mark.timeout(4 * PROGRAM_SECONDS)]
LINES: Final = 20
REFUSED: Final = 7


def test_files_and_batches_sync_and_async(foreign: Foreign, provider: FakeProvider) -> None:
    provider.when(f"question {REFUSED}.", failure(400))
    provider.when("held", Reply(text="An answer.", delay=1.0))
    provider.when("question", Reply(text="An answer."))
    for told in foreign.run("litellm_batches").values():
        check_files(told["files"])
        check_batches(told["batches"])
        check_ends(told["ends"])
    answered = [call.question for call in provider.calls if call.question.startswith("question")]
    assert len(answered) == 2 * LINES


def check_files(told: dict[str, Any]) -> None:
    made = told["made"]
    assert (made["object"], made["purpose"], made["status"]) == ("file", "batch", "processed")
    assert (made["filename"], made["bytes"]) == ("questions.jsonl", 2)
    assert made["expires_at"] - made["created_at"] in (7200, 7201)
    assert (told["again"], told["content"]) == (made, "{}")
    assert made["id"] in told["listed"]
    assert told["other"] == []
    assert (told["deleted"]["id"], told["deleted"]["deleted"]) == (made["id"], True)
    assert told["gone"] == told["gone content"] == ["NotFoundError", 404]


def check_batches(told: dict[str, Any]) -> None:
    begun, done = told["begun"], told["done"]
    assert told["again"] == begun["id"] == done["id"]
    assert (begun["status"], begun["output_file_id"], begun["error_file_id"]) == ("validating", None, None)
    assert (begun["input_file_id"], begun["completion_window"]) == (told["file"], "24h")
    assert begun["expires_at"] - begun["created_at"] == 86_400
    assert (done["status"], done["metadata"], done["errors"]) == ("completed", {"run": "nightly"}, None)
    assert done["request_counts"] == {"total": LINES, "completed": LINES - 1, "failed": 1}
    assert None not in (done["in_progress_at"], done["finalizing_at"], done["completed_at"])
    assert told["streamed"] == told["output"]
    good = [json.loads(line) for line in told["output"].splitlines()]
    assert [row["custom_id"] for row in good] == [f"id-{one}" for one in range(LINES) if one != REFUSED]
    assert {row["response"]["status_code"] for row in good} == {200}
    (bad,) = [json.loads(line) for line in told["errors"].splitlines()]
    assert (bad["custom_id"], bad["response"]["status_code"]) == (f"id-{REFUSED}", 400)


def check_ends(told: dict[str, Any]) -> None:
    assert told["stopping"]["status"] in ("cancelling", "cancelled")
    assert told["stopping"]["cancelling_at"]
    assert told["stopped"]["status"] == "cancelled"
    wrong = told["wrong"]
    assert (wrong["status"], wrong["output_file_id"], wrong["error_file_id"]) == ("failed", None, None)
    assert [(one["line"], one["code"], one["param"]) for one in wrong["errors"]["data"]] == [
        (2, "invalid_json_line", None),
        (3, "duplicate_custom_id", "custom_id"),
    ]
    assert told["unknown"] == ["NotFoundError", 404]
    assert told["unknown file"] == ["BadRequestError", 400]
    listed = [one for page in told["pages"] for one in page]
    assert {len(page) for page in told["pages"][:-1]} == {2}
    assert len(listed) == len(set(listed))
    assert set(told["all"]) <= set(listed)
