"""Token counts for calls whose provider reported none: a rule of thumb, and always marked as such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from aiforge.core.types import Usage

BYTES_PER_TOKEN: Final = 4
"""English text has about four bytes a token, Chinese and Japanese text about three."""
TOKENS_PER_MESSAGE: Final = 4
"""What role and separators of a message cost."""
TOKENS_PER_ATTACHMENT: Final = 765
"""What an image of usual size costs at the providers that publish a rule."""
LONGEST_ANSWER: Final = 16_384
"""Tokens that an answer is taken to have at most where nothing bounds it."""
USUAL_ANSWER: Final = 500
"""Tokens that an answer is expected to have where nothing bounds it."""

MOST_TOKENS: Final = 1_000_000_000
"""More than any model reads or writes in one call."""


def count_tokens(text: str) -> int:
    """About as many tokens as a current tokenizer makes of `text`."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def count_messages(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None) -> int:
    """About as many input tokens as these messages and tool schemas cost."""
    total = _count(tools)
    for message in messages:
        total += TOKENS_PER_MESSAGE + _count(message.get("tool_calls"))
        content = message.get("content")
        total += sum(map(_count_part, content)) if isinstance(content, list) else _count(content)
    return total


def estimate_usage(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, output: str) -> Usage:
    """The usage of a call that was cut short or reported none; `output` is what arrived of the answer."""
    return Usage(
        input_tokens=count_messages(messages, tools), output_tokens=count_tokens(output), estimated=True
    )


def believed(usage: Usage | None) -> Usage | None:
    """What a provider reported, or None where no call can have cost that; a wrong detail counts as none.

    A detail is wrong, too, when it is more than what it is a part of: a price would fall below zero.
    """
    if usage is None or not (_possible(usage.input_tokens) and _possible(usage.output_tokens)):
        return None
    read, written = max(0, usage.cached_tokens), max(0, usage.cache_write_tokens)
    if read + written > usage.input_tokens:
        read = written = 0
    return msgspec.structs.replace(
        usage,
        cached_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=_part(usage.reasoning_tokens, usage.output_tokens),
        input_audio_tokens=_part(usage.input_audio_tokens, usage.input_tokens),
        output_audio_tokens=_part(usage.output_audio_tokens, usage.output_tokens),
    )


def _part(tokens: int, whole: int) -> int:
    return tokens if 0 <= tokens <= whole else 0


def _possible(tokens: int) -> bool:
    return 0 <= tokens <= MOST_TOKENS


def _count_part(part: object) -> int:
    if isinstance(part, Mapping):
        text = part.get("text")
        return count_tokens(text) if isinstance(text, str) else TOKENS_PER_ATTACHMENT
    return _count(part)


def _count(part: object) -> int:
    if part is None:
        return 0
    return count_tokens(part if isinstance(part, str) else msgspec.json.encode(part, enc_hook=str).decode())


def usual_answer(most: int | None) -> int:
    """Tokens of an answer that nobody saw, where it can have `most` at most."""
    return USUAL_ANSWER if most is None else min(USUAL_ANSWER, most)
