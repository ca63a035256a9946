"""The provider of the chaos test: each word of an answer names its call, so that a mixture of two shows."""

from __future__ import annotations

import json
import os
from typing import Final

from aiforge.testing import FakeProvider, RecordedCall, Reply, Silence, serve

SHAPE: Final = "CHAOS_ANSWERS"


def settings(words: int, gap: float, silence: float) -> dict[str, str]:
    """The environment of a provider whose answers have this shape; durations in seconds."""
    return {SHAPE: json.dumps([words, gap, silence])}


def whole_answer(call: int, words: int) -> str:
    """What the provider answers its call number `call`."""
    return "".join(_words(call, words))


def _words(call: int, words: int) -> list[str]:
    return [f"{call}.{position} " for position in range(words)]


def main() -> None:
    words, gap, silence = json.loads(os.environ[SHAPE])

    def answer(call: RecordedCall) -> Reply:
        return Reply(chunks=[Silence(seconds=silence), *_words(call.number, words), Silence(seconds=silence)])

    serve(FakeProvider(default=answer, chunk_gap=gap))


if __name__ == "__main__":
    main()
