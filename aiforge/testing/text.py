"""The words of answers that nobody scripted, and what counts as a token."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from zlib import crc32

_PROSE = (
    "please check the order number in your account page first then open settings and choose delivery "
    "we can send a new invoice within two days and refund the amount to the same card after support "
    "has confirmed that this item was returned unused with its box and all parts inside"
)
_WORDS = _PROSE.split()
_PIECE = re.compile(r"\s*\S+|\s+")
_SHOWN = 40


def pieces(text: str) -> list[str]:
    """The text cut into words that keep the space before them; joined they are the text again."""
    return _PIECE.findall(text)


def count(text: str) -> int:
    """About as many tokens as a model would see: one for each four characters begun."""
    return (len(text) + 3) // 4


def count_messages(messages: Sequence[Mapping[str, Any]]) -> int:
    """Input tokens of a request: its texts and four for each message."""
    return sum(4 + count(text_of(message.get("content"))) for message in messages)


def text_of(content: object) -> str:
    """The text of a message's content, whether it is a string or parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def default_answer(question: str, tokens: int, seed: int = 0) -> list[str]:
    """`tokens` chunks about the question, the same ones for the same question and seed."""
    shown = " ".join(question[: 2 * _SHOWN].split())[:_SHOWN]
    variant = crc32(question.encode("utf-8", "surrogatepass"), seed & 0xFFFFFFFF) % 256
    return [f"About “{shown}”:", *_words(variant, tokens - 1)]


@lru_cache(maxsize=1024)
def _words(variant: int, number: int) -> tuple[str, ...]:
    step = 1 + 2 * (variant % 7)
    return tuple(" " + _WORDS[(variant + n * step) % len(_WORDS)] for n in range(number))
