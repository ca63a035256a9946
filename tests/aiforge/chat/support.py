"""What the chat tests share: a recorder, a spec, tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from langchain_core.language_models import BaseChatModel

from aiforge.core.deltas import CallParams
from aiforge.core.events import Event
from aiforge.core.settings import AIForgeSettings
from aiforge.core.types import ProviderCall, Usage
from aiforge.modules.chat.agent import TurnResult, TurnSpec, run_turn

T = TypeVar("T")


class ListRecorder:
    """Keeps what it is told, in order."""

    def __init__(self) -> None:
        self.intended: list[ProviderCall] = []
        self.settled: list[ProviderCall] = []

    def next_call_id(self) -> str:
        return f"call-{len(self.intended)}"

    async def intend(self, call: ProviderCall, most: Callable[[], Usage]) -> None:
        self.intended.append(call)

    def settle(self, call: ProviderCall) -> None:
        self.settled.append(call)

    @property
    def outcomes(self) -> list[str]:
        return [call.outcome for call in self.settled]


class Turn:
    """Runs one turn and keeps all that can be seen of it."""

    def __init__(self, model: BaseChatModel, **fields: Any) -> None:
        settings = AIForgeSettings.load(**fields.pop("settings", {}))
        given = {
            "message": "Hello",
            "system_prompt": "Be kind.",
            "provider": "custom",
            "model_name": "scripted",
        }
        self.spec = TurnSpec(
            **{**given, "params": CallParams(), "settings": settings, "model": model, **fields}
        )
        self.events: list[Event] = []
        self.recorder = ListRecorder()

    async def run(self) -> TurnResult:
        return await run_turn(self.spec, emit=self.events.append, recorder=self.recorder)

    def of(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]


class DuckTool:
    """A tool by its three attributes alone."""

    def __init__(self, name: str, function: Callable[[dict[str, Any]], Any]) -> None:
        self.name = name
        self.description = f"Does {name}."
        self.invoke = function


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """In a loop of its own, with a limit that a test which hangs reaches first."""

    async def limited() -> T:
        async with asyncio.timeout(30):
            return await coroutine

    return asyncio.run(limited())


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until `condition` holds."""
    while not condition():  # noqa: ASYNC110  # what tests wait for has no event of its own
        await asyncio.sleep(0.001)
