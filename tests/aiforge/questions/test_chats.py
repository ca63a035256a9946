"""Lines that are chat requests: what is taken from them, and what a question cannot carry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aiforge.questions.errors import BadLinesError
from aiforge.questions.reading import Choices
from tests.aiforge.questions.support import read

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "a?"}


def line(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def test_a_batch_line_carries_its_options(tmp_path: Path) -> None:
    body = {"messages": [SYSTEM, USER], "model": "m", "temperature": 0.5, "max_completion_tokens": 7}
    given = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body, "tag": "t"}
    (question,) = read(tmp_path, "a.jsonl", line(given))
    assert (question.id, question.text, question.extra) == ("1", "a?", {"tag": "t"})
    assert question.options == {
        "model": "m", "temperature": 0.5, "max_tokens": 7, "system_prompt": "Be brief.",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"messages": [SYSTEM, USER], "system_prompt": "x"}, "has a system message and a 'system_prompt'"),
        ({"messages": [{**SYSTEM, "content": ["x"]}, USER]}, "'messages'[0].content must be a string"),
        ({"messages": [USER], "tag": "\0"}, "'tag' holds a NUL"),
        ({"messages": [USER], "max_tokens": 0}, "'max_tokens' must be"),
        ({"custom_id": "1", "body": {"messages": [USER], "top_p": 1}}, "'body' has 'top_p'"),
        ({"custom_id": "1", "body": {"model": "m"}}, "'body' has no list of 'messages'"),
        ({"method": "GET", "body": {"messages": [USER]}}, "'method' must be POST"),
        ({"url": "/v1/embeddings", "body": {"messages": [USER]}}, "'url' must be /v1/chat/completions"),
    ],
)
def test_what_a_question_cannot_carry_is_named(tmp_path: Path, given: dict[str, Any], why: str) -> None:
    with pytest.raises(BadLinesError) as caught:
        read(tmp_path, "a.jsonl", line(given))
    assert caught.value.details[0].startswith(f"line 1 {why}")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"messages": [USER]}, "holds 'messages', which no"),
        ({"question": [{"type": "text", "text": "a?"}]}, "'question' holds parts, which no"),
    ],
)
def test_no_template_can_hold_messages_or_parts(tmp_path: Path, given: dict[str, Any], why: str) -> None:
    content, choices = line({"question": "b?"}) + line(given), Choices(prompt_template="{question}")
    with pytest.raises(BadLinesError) as caught:
        read(tmp_path, "a.jsonl", content, choices)
    assert caught.value.details[0].startswith(f"line 2 {why}")


def test_a_question_beside_messages_is_the_question(tmp_path: Path) -> None:
    (question,) = read(tmp_path, "a.jsonl", line({"question": "b?", "messages": [USER]}))
    assert question.text == "b?"
