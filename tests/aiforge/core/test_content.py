"""What a user's message may be."""

from __future__ import annotations

from typing import Any

import pytest

from aiforge.core.content import MAX_DEPTH, MAX_MESSAGE_BYTES, ContentError, check_content

TEXT = {"type": "text", "text": "What is this?"}


def nested(levels: int) -> Any:
    """Lists in lists, this many."""
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "message",
    [
        "Hello?",
        [TEXT],
        [TEXT, {"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}}],
        [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}],
        [{"type": "file", "file": {"file_id": "f"}}],
        [{**TEXT, "cache_control": {"type": "ephemeral"}}],
        [{**TEXT, "a": nested(MAX_DEPTH - 2)}],
        "x" * (MAX_MESSAGE_BYTES - 2),
    ],
)
def test_what_a_user_can_say(message: object) -> None:
    check_content(message)


@pytest.mark.parametrize(
    ("message", "where", "says"),
    [
        (" ", "", "must not be empty"),
        ([], "", "must be a string or a list of parts with a type"),
        (5, "", "must be a string or a list of parts with a type"),
        ("\ud800", "", "holds a lone surrogate"),
        ([{**TEXT, "\ud800": 1}], "", "holds a lone surrogate"),
        ("x" * (MAX_MESSAGE_BYTES - 1), "", f"is longer than {MAX_MESSAGE_BYTES} bytes"),
        ([5], "[0]", "expected `object`, got `int`"),
        ([{}], "[0]", "object missing required field `type`"),
        ([{"type": 5}], "[0].type", "expected `str`, got `int`"),
        ([{"type": "video"}], "[0].type", "invalid value 'video', must be text, image_url, input_audio or"),
        ([TEXT, {"type": "text"}], "[1]", "object missing required field `text`"),
        ([{"type": "text", "text": 5}], "[0].text", "expected `str`, got `int`"),
        ([{"type": "image_url", "image_url": "x"}], "[0].image_url", "expected `object`, got `str`"),
        ([{"type": "image_url", "image_url": {}}], "[0].image_url", "object missing required field `url`"),
        ([{**TEXT, "a": nested(MAX_DEPTH - 1)}], "", f"is nested more than {MAX_DEPTH} deep"),
        ([{**TEXT, "a": nested(100_000)}], "", f"is nested more than {MAX_DEPTH} deep"),
    ],
)
def test_what_is_wrong_with_a_message(message: object, where: str, says: str) -> None:
    with pytest.raises(ContentError) as caught:
        check_content(message)
    assert caught.value.where == where
    assert str(caught.value).startswith(says)
