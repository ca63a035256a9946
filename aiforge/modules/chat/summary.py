"""One provider call that turns old messages into a summary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from langchain_core.language_models import BaseChatModel

from aiforge.core.deltas import CallParams
from aiforge.core.events import Event
from aiforge.core.types import ProviderError
from aiforge.modules.chat.calls import Calls, Request
from aiforge.modules.chat.memory import summary_request
from aiforge.modules.chat.turn import Recorder

LONGEST_SUMMARY: Final = 1500
"""Tokens that the model may use; 500 words are about half of that."""


async def summarize(
    messages: Sequence[Mapping[str, Any]],
    earlier: str | None,
    *,
    model: BaseChatModel,
    provider: str,
    model_name: str,
    emit: Callable[[Event], None],
    recorder: Recorder,
) -> str | None:
    """A summary of `messages` and of the `earlier` summary, or None when the call failed.

    There are no retries: the turn waits for this, and the next one tries again.
    """
    calls = Calls(
        model=model,
        provider=provider,
        model_name=model_name,
        params=CallParams(max_tokens=LONGEST_SUMMARY),
        max_retries=0,
        deadline=asyncio.get_running_loop().time(),
        emit=emit,
        recorder=recorder,
    )
    try:
        reply = await calls.ask(Request(messages=summary_request(messages, earlier), purpose="summary"))
    except ProviderError:
        return None
    return reply.answer.strip()
