"""The library's turn engine as the service runs it."""

from __future__ import annotations

from collections.abc import Callable

from aiforge.core.events import Event
from aiforge.core.request import ChatRequest, serving
from aiforge.modules.chat.agent import Recorder, TurnResult, TurnSpec, run_turn


async def answer(
    spec: TurnSpec, conversation_id: str, *, emit: Callable[[Event], None], recorder: Recorder
) -> TurnResult:
    """Take a turn to its answer, or to a question. Models and tools see the turn as `current_request()`."""
    request = ChatRequest(spec.text, conversation_id, spec.turn_id, spec.metadata, dispatches=False)
    with serving(request):
        return await run_turn(spec, emit=emit, recorder=recorder)
