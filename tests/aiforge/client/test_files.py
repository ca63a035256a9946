"""Files and batches as either client asks for them: streamed up, streamed down, resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aiforge.client import Batch, File, NotFoundError, RequestError, Row, UnreachableError
from tests.aiforge.client.conftest import Ask
from tests.aiforge.client.service import Answer, Service, answer, refusal, stream

FILE = {
    "id": "file-17ab",
    "object": "file",
    "bytes": 3,
    "created_at": 1,
    "expires_at": None,
    "filename": "in.jsonl",
    "purpose": "batch",
    "status": "processed",
}
BATCH: dict[str, Any] = {"id": "batch_17ab", "status": "in_progress", "cost": "0.1", "usage": {}}


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "fragen – ü.jsonl"
    path.write_bytes(b'{"a": 1}\n' * 20_000)
    return path


def test_a_file_is_sent_as_a_form_and_again_when_the_service_was_busy(
    service: Service, ask: Ask, lines: Path
) -> None:
    service.answers = [refusal(503, "unavailable"), answer(FILE), answer(FILE)]
    made = ask(service.url, "upload", lines, expires_after=7200)
    assert made == File(id="file-17ab", filename="in.jsonl", purpose="batch", bytes=3, created_at=1)
    ask(service.url, "upload", str(lines), filename="x.jsonl")
    first, second, third = (request.body for request in service.requests)
    for form in (first, second):
        assert form.count(lines.read_bytes()) == 1
        assert b'name="purpose"\r\n\r\nbatch\r\n' in form
        assert b'name="expires_after[seconds]"\r\n\r\n7200\r\n' in form
    assert 'filename="fragen – ü.jsonl"'.encode() in first
    assert b'filename="x.jsonl"' in third
    assert b"expires_after" not in third
    assert {request.path for request in service.requests} == {"/v1/files"}


def test_an_upload_whose_answer_was_lost_is_not_repeated(service: Service, ask: Ask, lines: Path) -> None:
    service.answers = [Answer(b"{", cut=True)]
    with pytest.raises(UnreachableError):
        ask(service.url, "upload", lines)
    assert len(service.requests) == 1


def test_a_file_that_is_not_there_or_has_no_name_is_refused_before_anything_is_sent(
    service: Service, ask: Ask, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        ask(service.url, "upload", tmp_path / "none.jsonl")
    with pytest.raises(RequestError, match="is not UTF-8"):
        ask(service.url, "upload", tmp_path / "x", filename="\udce9")
    assert service.requests == []


def test_files_are_listed_read_and_deleted(service: Service, ask: Ask) -> None:
    pages = [{"data": [{**FILE, "id": f"file-{number}"}], "has_more": number == 0} for number in range(2)]
    service.answers = [
        *map(answer, pages),
        answer(FILE),
        answer({"deleted": True}),
        Answer(b"a\xff" * 70_000),
    ]
    assert [file.id for file in ask(service.url, "files")] == ["file-0", "file-1"]
    assert ask(service.url, "file", "file-17ab").bytes == 3
    ask(service.url, "delete_file", "file-17ab")
    assert b"".join(ask(service.url, "download", "file-17ab")) == b"a\xff" * 70_000
    assert [(request.method, request.path) for request in service.requests] == [
        ("GET", "/v1/files?limit=1000"),
        ("GET", "/v1/files?limit=1000&after=file-0"),
        ("GET", "/v1/files/file-17ab"),
        ("DELETE", "/v1/files/file-17ab"),
        ("GET", "/v1/files/file-17ab/content"),
    ]


def test_a_download_that_fails_is_an_error(service: Service, ask: Ask) -> None:
    service.answers = [refusal(404, "not_found"), Answer(b"half", cut=True)]
    with pytest.raises(NotFoundError):
        ask(service.url, "download", "file-17ab")
    with pytest.raises(UnreachableError):
        ask(service.url, "download", "file-17ab")


def test_a_batch_is_posted_under_its_key_and_asked_for_again(service: Service, ask: Ask) -> None:
    service.answers = [Answer(b"{", cut=True), answer(BATCH)]
    options = {"dedupe": True, "max_cost": "2.50", "completion_window": "24h"}
    ask(service.url, "submit_batch", ["a"], idempotency_key="k", **options)
    for request in service.requests:
        assert request.headers["idempotency-key"] == "k"
        assert request.body == {"items": [{"message": "a"}], **options}


def batch_event(name: str, value: dict[str, Any], number: int | None = None) -> bytes:
    head = b"" if number is None else b"id: %d\n" % number
    return head + f"event: {name}\ndata: {json.dumps(value)}\n\n".encode()


def test_a_batch_s_events_are_resumed_behind_the_last_row(service: Service, ask: Ask) -> None:
    rows = [batch_event("row", {"index": 9 - number, "status": "ok"}, number) for number in (1, 2, 3)]
    done = {**BATCH, "status": "completed"}
    service.answers = [
        stream(rows[0], batch_event("progress", BATCH), rows[1], cut=True),
        refusal(503, "unavailable"),
        stream(b": ping\n\n", batch_event("news", {}), rows[1], rows[2], batch_event("done", done)),
    ]
    events = ask(service.url, "batch_events", "batch_17ab")
    assert [(number, getattr(said, "index", None)) for number, said in events] == [
        (1, 8), (1, None), (2, 7), (3, 6), (3, None),
    ]  # fmt: skip
    assert isinstance(events[0][1], Row)
    assert isinstance(events[-1][1], Batch)
    assert events[-1][1].ended
    asked = [(request.path, request.headers["last-event-id"]) for request in service.requests]
    assert asked == [("/v1/batches/batch_17ab/events", number) for number in ("0", "2", "2")]
