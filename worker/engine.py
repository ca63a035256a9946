"""The library's turn engine as the service runs it."""

from __future__ import annotations

from collections.abc import Callable

from aiforge.core.events import Event
from aiforge.core.types import ConfigError
from aiforge.modules.chat.agent import Recorder, TurnResult, TurnSpec, run_turn


async def answer(spec: TurnSpec, *, emit: Callable[[Event], None], recorder: Recorder) -> TurnResult:
    """Take a turn to its answer; a turn that would wait for a human is refused, not answered with nothing."""
    result = await run_turn(spec, emit=emit, recorder=recorder)
    if result.pending is not None:
        raise ConfigError(f"tool {result.pending.tool!r} asks a human, which the service cannot do yet")
    return result
