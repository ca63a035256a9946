"""The library's turn engine as the service runs it."""

from __future__ import annotations

from collections.abc import Callable

from aiforge.core.events import Event
from aiforge.core.request import ChatRequest, serving
from aiforge.core.types import ConfigError
from aiforge.modules.chat.agent import Recorder, TurnResult, TurnSpec, run_turn


async def answer(
    spec: TurnSpec, conversation_id: str, *, emit: Callable[[Event], None], recorder: Recorder
) -> TurnResult:
    """Take a turn to its answer, or to a question. Models and tools see the turn as `current_request()`."""
    request = ChatRequest(spec.text, conversation_id, spec.turn_id, spec.metadata, dispatches=False)
    with serving(request):
        return await run_turn(spec, emit=emit, recorder=recorder)


async def answer_item(spec: TurnSpec, recorder: Recorder) -> TurnResult:
    """An item of a batch is a conversation of its own, and nobody is there to be asked."""
    result = await answer(spec, spec.turn_id, emit=_ignore, recorder=recorder)
    if result.pending is not None:
        raise ConfigError(f"tool {result.pending.tool!r} asks a human, which an item of a batch cannot do")
    return result


def _ignore(_event: Event) -> None:
    """Items do not stream."""
