"""Provider calls that turn old messages into a summary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from langchain_core.language_models import BaseChatModel

from aiforge.core.deltas import CallParams
from aiforge.core.events import Event
from aiforge.core.gate import Gate
from aiforge.core.pricing import Price
from aiforge.core.recorder import Recorder
from aiforge.core.tokens import BYTES_PER_TOKEN, count_messages, count_tokens
from aiforge.core.types import AIForgeError
from aiforge.modules.chat.budget import Budget
from aiforge.modules.chat.calls import Calls, Request
from aiforge.modules.chat.memory import Memory, quoted, summary_request
from aiforge.modules.chat.turn import instructions

LONGEST_SUMMARY: Final = 1500
"""Tokens that the model may use; 500 words are about half of that."""
LONGEST_KEPT: Final = 2
"""How many times what it may use of tokens is kept of a summary, counted as roughly as they are here."""
SMALLEST_PIECE: Final = 64
"""Tokens of conversation that a request holds, however small its window: a smaller one serves nobody."""


async def shorten(
    memory: Memory,
    budget: Budget,
    *,
    system_prompt: str,
    message: str | list[dict[str, Any]],
    tools: Sequence[Any],
    model: BaseChatModel,
    provider: str,
    model_name: str,
    emit: Callable[[Event], None],
    recorder: Recorder,
    prices: Mapping[str, Price] | None = None,
    gate: Gate | None = None,
) -> int | None:
    """Summarise what is old before `message` is asked, if there is enough of it.

    `tools` are the schemas that go with the request. Returns how many messages the summary has taken
    the place of, 0 when there was no need. None says that it failed or came empty: then `memory` is
    as it was, and the next turn tries again.
    """
    if not memory.summarizes:
        return 0
    await budget.resolve()
    window = memory.window()
    asked = [*instructions(system_prompt, memory.summary), *window, {"role": "user", "content": message}]
    limit = budget.summarize_at
    over = count_messages(asked, tools) > limit
    old = memory.to_summarize(over=over, keep=budget.keep, tail=limit // 2)
    if not old:
        return 0
    summary = await summarize(
        old,
        memory.summary,
        room=budget.summary_room,
        model=model,
        provider=provider,
        model_name=model_name,
        emit=emit,
        recorder=recorder,
        prices=prices,
        gate=gate,
    )
    if summary is None:
        return None
    memory.replace(len(old), summary)
    return len(old)


async def summarize(
    messages: Sequence[Mapping[str, Any]],
    earlier: str | None,
    *,
    model: BaseChatModel,
    provider: str,
    model_name: str,
    emit: Callable[[Event], None],
    recorder: Recorder,
    room: int | None = None,
    prices: Mapping[str, Price] | None = None,
    gate: Gate | None = None,
) -> str | None:
    """A summary of `messages` and of the `earlier` summary, or None when a call failed or said nothing.

    A request and its answer have at most `room` tokens, so many messages take several requests; each
    holds the summary of all before it. There are no retries: the turn waits for this, and the next
    one tries again.
    """
    longest = LONGEST_SUMMARY if room is None else min(LONGEST_SUMMARY, max(room // 4, 1))
    calls = Calls(
        model=model,
        provider=provider,
        model_name=model_name,
        params=CallParams(max_tokens=longest),
        max_retries=0,
        deadline=asyncio.get_running_loop().time(),
        emit=emit,
        recorder=recorder,
        prices=prices,
        gate=gate,
    )
    waiting = [quoted(message) for message in messages]
    summary = earlier
    while waiting:
        if room is not None and summary is not None:
            summary = _cut(summary, LONGEST_KEPT * longest)[0]
        part, waiting = _part(waiting, summary, None if room is None else room - longest)
        try:
            reply = await calls.ask(Request(messages=summary_request(part, summary), purpose="summary"))
        except AIForgeError:
            return None
        summary = reply.answer.strip()
    return summary


def _part(waiting: list[str], summary: str | None, room: int | None) -> tuple[list[str], list[str]]:
    """What fits into the next request, and what is left; a message that is too long is cut in two."""
    if room is None:
        return waiting, []
    left = max(room - count_messages(summary_request([], summary)), SMALLEST_PIECE)
    for number, text in enumerate(waiting):
        cost = count_tokens(text) + 1
        if cost <= left:
            left -= cost
            continue
        if number:
            return waiting[:number], waiting[number:]
        head, tail = _cut(text, left - 1)  # one for the line feed that joins it
        return [head], [tail, *waiting[1:]]
    return waiting, []


def _cut(text: str, tokens: int) -> tuple[str, str]:
    """At most so many tokens of the text, whole lines if there are any, and the rest."""
    head = text.encode()[: tokens * BYTES_PER_TOKEN].decode(errors="ignore")
    if len(head) < len(text) and "\n" in head:
        head = head[: head.rindex("\n") + 1]
    return head, text[len(head) :]
