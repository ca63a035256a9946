"""A provider's model whose answers can be the death of the process that asks for them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from aiforge.core.settings import AIForgeSettings

POISON: Final = "poison"
"""Kills the process."""
DEAF: Final = "deaf"
"""Says half of its answer, makes the file that is named behind this word, and lets nothing else run."""
DEAF_SECONDS: Final = 60
AFTER_SECONDS: Final = 0.2
"""Between the first word and the rest: readers have seen it by then."""


class Poison(BaseChatModel):
    """Answers with the number of the process that it runs in."""

    @property
    def _llm_type(self) -> str:
        return "poison"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        _harm(str(messages[-1].content))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=f"from {os.getpid()}"))])

    async def _astream(
        self, messages: list[BaseMessage], *_: Any, **__: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(content="from "))
        await asyncio.sleep(AFTER_SECONDS)
        _harm(str(messages[-1].content))
        yield ChatGenerationChunk(message=AIMessageChunk(content=str(os.getpid())))


def model(settings: AIForgeSettings, name: str) -> BaseChatModel:
    return Poison()


def _harm(question: str) -> None:
    if POISON in question:
        os.kill(os.getpid(), signal.SIGKILL)
    if question.startswith(DEAF):
        Path(question.removeprefix(DEAF).strip()).touch()
        ctypes.PyDLL(None).sleep(DEAF_SECONDS)  # which holds the interpreter's lock
