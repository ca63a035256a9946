"""Which requests of a batch are the same: those that mean the same."""

from __future__ import annotations

from typing import Any

import pytest

from worker.contract.batch.answers import asked
from worker.contract.batch.entries import entries_of
from worker.contract.batch.lines import Lines
from worker.contract.batch.sameness import line_question
from worker.contract.schemas import BatchItem, BatchRequest

BODY = '{"model":"m","temperature":0,"messages":[{"role":"user","content":"a"}]}'


def repeats(items: list[BatchItem], **more: Any) -> list[bool]:
    return [entry.startswith(b"=") for entry in entries_of(BatchRequest(items=items, **more))]


@pytest.mark.parametrize(
    ("second", "more", "same"),
    [
        ({"metadata": {"row": "2"}}, {}, True),
        ({"metadata": {"row": "2"}, "tools": ["clock"]}, {}, False),
        ({"metadata": {"row": "2"}}, {"tools": ["clock"]}, False),
        ({"temperature": 0.0}, {"temperature": 0}, True),
        ({"model": "m"}, {"model": "m"}, True),
        ({"tools": []}, {}, True),
        ({"model": "n"}, {"model": "m"}, False),
        ({"max_tokens": 5}, {}, False),
        ({"system_prompt": "Be brief."}, {}, False),
        ({"message": "x "}, {}, False),
    ],
)
def test_items(second: dict[str, Any], more: dict[str, Any], same: bool) -> None:
    items = [BatchItem(message="x", id="1"), BatchItem(**{"message": "x", "id": "2", **second})]
    assert repeats(items, dedupe=True, **more) == [False, same]


@pytest.mark.parametrize(
    ("body", "same"),
    [
        ('{"messages":[{"content":"a","role":"user"}],"temperature":0,"model":"m"}', True),
        (BODY.replace(":0,", ": 0.0 ,"), True),
        (BODY.replace(":0,", ":-0e5,"), True),
        (BODY.replace('"a"', '"\\u0061"'), True),
        (BODY.replace(":0,", ':0,"metadata":{"row":"2"},"user":"u","store":false,'), True),
        (BODY.replace(":0,", ':0,"seed":null,'), True),
        (BODY.replace(":0,", ':0,"store":true,"metadata":{"row":"2"},'), False),
        (BODY.replace(":0,", ':0,"seed":1,'), False),
        (BODY.replace(":0,", ":0.5,"), False),
        (BODY.replace('"a"', '"b"'), False),
        (BODY.replace(":0,", ':0,"n":true,'), False),
    ],
)
def test_lines(body: str, same: bool) -> None:
    lines = Lines(
        BatchRequest(input_file_id="f", endpoint="/v1/chat/completions", completion_window="24h", dedupe=True)
    )
    envelope = '{"custom_id":"%d","method":"POST","url":"/v1/chat/completions","body":%s}'
    entries, _ = lines.take([(envelope % pair).encode() for pair in enumerate([BODY, body])])
    assert [entry.startswith(b"=") for entry in entries] == [False, same]


def test_what_is_kept_for_later_batches_goes_by_the_same_rule() -> None:
    one = {"model": "m", "temperature": 0.0, "metadata": {"a": "b"}}
    other = {"temperature": 0, "model": "m"}
    assert asked("t", line_question(one)) == asked("t", line_question(other))
    assert asked("t", {"x": 1}) != asked("t", {"x": True})
    assert asked("t", {"x": 2**60}) != asked("t", {"x": 2**60 + 1})
