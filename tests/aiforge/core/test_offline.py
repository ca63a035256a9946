"""The offline model says what it is, remembers, counts, and is the same every time."""

from __future__ import annotations

import asyncio
import time
from decimal import Decimal
from typing import Any

from aiforge.core.deltas import CallParams, FinishDelta, TextDelta
from aiforge.core.offline import OfflineChat
from aiforge.core.pricing import price
from aiforge.core.providers import create_model
from aiforge.core.settings import AIForgeSettings
from tests.aiforge.core.support import ask, hear

QUICK = {"delay": (0.0, 0.0), "tokens_per_second": 1e6}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "My name is Ada."},
    {"role": "assistant", "content": "Hello Ada."},
    {"role": "user", "content": [{"type": "text", "text": "What is my name?"}]},
]


def test_it_says_what_it_is_and_what_it_has_seen() -> None:
    text = asyncio.run(ask(OfflineChat(**QUICK), TALK)).text
    assert "offline model" in text
    assert "not a real" in text or "no real" in text
    assert "2 messages" in text
    assert "“My name is Ada.”" in text
    assert "“What is my name?”" in text


def test_the_same_words_give_the_same_answer() -> None:
    def answer(question: str, seed: int = 0) -> str:
        return asyncio.run(ask(OfflineChat(seed=seed, **QUICK), [{"role": "user", "content": question}])).text

    assert answer("When do you open?") == answer("When do you open?")
    assert answer("When do you open?") != answer("When do you close?")
    assert len({answer("When do you open?", seed) for seed in range(20)}) > 3


def test_stream_and_whole_answer_agree() -> None:
    model = OfflineChat(**QUICK)
    heard, answer = asyncio.run(hear(model, TALK)), asyncio.run(ask(model, TALK))
    assert heard.text == answer.text
    assert heard.usages == [answer.usage]
    assert heard.deltas[-1] == FinishDelta("stop")
    tokens = [delta for delta in heard.deltas if isinstance(delta, TextDelta)]
    assert answer.usage.output_tokens == len(tokens)
    assert answer.usage.input_tokens > 10
    assert not answer.usage.estimated
    assert price("offline", "offline", answer.usage) == Decimal(0)


def test_limits_are_kept() -> None:
    model = OfflineChat(**QUICK)
    short = asyncio.run(ask(model, TALK, params=CallParams(max_tokens=3)))
    assert (short.usage.output_tokens, short.finish_reason) == (3, "length")
    assert "model" not in asyncio.run(ask(model, TALK, params=CallParams(stop=["model"]))).text


def test_its_pace() -> None:
    """50 to 300 ms for a whole answer, about 40 tokens a second in a stream."""
    model = create_model(AIForgeSettings.load(PROVIDER="offline"))

    async def both() -> tuple[float, float, int]:
        start = time.monotonic()
        await ask(model)
        whole = time.monotonic() - start
        heard = await hear(model, params=CallParams(max_tokens=20))
        return whole, time.monotonic() - start - whole, len(heard.deltas) - 2

    whole, streamed, tokens = asyncio.run(both())
    assert 0.04 < whole < 0.6
    assert tokens == 20
    assert 19 / 40 < streamed < 1.5
