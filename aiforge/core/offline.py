"""The offline model: it needs no key and no network, and never passes for a real one.

It shows that everything around a model works: answers come after a delay and in tokens, they differ
from question to question, and they tell what the model was given of the conversation. The same
messages and seed give the same answer in the same time.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

import msgspec

from aiforge.core.delta_chat import DeltaChat
from aiforge.core.deltas import CallParams, CallRequest, Completion, Delta, FinishDelta, TextDelta, UsageDelta
from aiforge.core.tokens import count_messages
from aiforge.core.types import Usage

DEFAULT_MODEL: Final = "offline"
_QUOTE_LENGTH: Final = 60

_OPENINGS: Final = (
    "This is AIForge's offline model, not a real one.",
    "You are talking to AIForge's offline model; it is not a real language model.",
    "I am the offline model that ships with AIForge, no real language model.",
)
_REMARKS: Final = (
    "I cannot answer questions, but this reply took the same path as a real one would.",
    "A real model would answer here; set a provider and a key to get one.",
    "Nothing in this reply is knowledge: it is made from what you wrote.",
)


class OfflineChat(DeltaChat):
    """Deterministic by messages and seed. `delay` is in seconds, before the first token."""

    model_name: str = DEFAULT_MODEL
    seed: int = 0
    delay: tuple[float, float] = (0.05, 0.3)
    tokens_per_second: float = 40.0

    @property
    def _llm_type(self) -> str:
        return "aiforge-offline"

    async def stream_deltas(self, request: CallRequest) -> AsyncGenerator[Delta, None]:
        """One streamed answer, a token at a time."""
        dice = self._dice(request.messages)
        tokens, reason = _limited(_answer(request.messages, dice), request.params)
        loop = asyncio.get_running_loop()
        # Times are counted from the start, so that a busy loop does not slow the stream down.
        start = loop.time() + dice.uniform(*self.delay)
        for position, token in enumerate(tokens):
            await asyncio.sleep(max(0.0, start + position / self.tokens_per_second - loop.time()))
            yield TextDelta(token)
        yield UsageDelta(_usage(request, tokens))
        yield FinishDelta(reason)

    async def complete(self, request: CallRequest) -> Completion:
        """The same answer in one piece, after the delay alone."""
        dice = self._dice(request.messages)
        tokens, reason = _limited(_answer(request.messages, dice), request.params)
        await asyncio.sleep(dice.uniform(*self.delay))
        return Completion(
            text="".join(tokens),
            tool_calls=[],
            usage=_usage(request, tokens),
            finish_reason=reason,
            model=self.model_name,
        )

    def _dice(self, messages: Sequence[Mapping[str, Any]]) -> random.Random:
        digest = hashlib.sha256(msgspec.json.encode([self.seed, messages], enc_hook=str)).digest()
        return random.Random(digest)  # noqa: S311  # variety, not secrecy


def _answer(messages: Sequence[Mapping[str, Any]], dice: random.Random) -> str:
    asked = [_text(message) for message in messages if message.get("role") == "user"]
    sentences = [dice.choice(_OPENINGS)]
    if asked:
        sentences.append(f"You wrote “{_quote(asked[-1])}”.")
    if len(asked) > 1:
        sentences.append(
            f"I have seen {len(asked)} messages of yours in this conversation; "
            f"the first was “{_quote(asked[0])}”."
        )
    elif asked:
        sentences.append("It is the first message of yours that I see in this conversation.")
    sentences.append(dice.choice(_REMARKS))
    return " ".join(sentences)


def _limited(answer: str, params: CallParams) -> tuple[list[str], str]:
    """The tokens within the call's limits, and why they end."""
    for stop in params.stop or ():
        if stop:
            answer = answer.split(stop, 1)[0]
    tokens: list[str] = re.findall(r"\s*\S{1,8}", answer)
    if params.max_tokens is not None and len(tokens) > params.max_tokens:
        return tokens[: params.max_tokens], "length"
    return tokens, "stop"


def _usage(request: CallRequest, tokens: list[str]) -> Usage:
    return Usage(input_tokens=count_messages(request.messages, request.tools), output_tokens=len(tokens))


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text") or f"[{part.get('type')}]") for part in content)


def _quote(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _QUOTE_LENGTH else line[: _QUOTE_LENGTH - 1].rstrip() + "…"
