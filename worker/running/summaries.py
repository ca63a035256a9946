"""Summaries of long conversations: made before a turn that needs one, kept before the turn builds on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from aiforge.core.events import Event
from aiforge.core.router import own_prices
from aiforge.modules.chat.agent import TurnSpec
from aiforge.modules.chat.memory import Memory
from aiforge.modules.chat.summary import shorten
from aiforge.tools.binding import bind
from worker.calls.ledger import Recorder
from worker.contract.claims import Claim
from worker.contract.store import TurnStore
from worker.patience import patiently


async def shortened(
    spec: TurnSpec,
    claim: Claim,
    store: TurnStore,
    *,
    emit: Callable[[Event], None],
    recorder: Recorder,
    lost: Callable[[], None],
) -> TurnSpec:
    """The turn with a summary of what is old in its history, if the conversation remembers so and it is due.

    A failure costs the summary, not the turn: the next one tries again. `lost` is called when the turn was
    given to another. A turn that goes on with what it has was shortened before, if there was need.
    """
    if claim.settings.memory != "summary" or spec.resume is not None or spec.budget is None:
        return spec
    memory = Memory(claim.place.conversation_id, "summary", claim.memory_k)
    memory.add(list(spec.history))
    memory.summary = spec.summary
    count = await shorten(
        memory,
        spec.budget,
        system_prompt=spec.system_prompt,
        message=spec.message,
        tools=[tool.schema for tool in bind(spec.tools)],
        model=spec.model,
        provider=spec.provider,
        model_name=spec.model_name,
        emit=emit,
        recorder=recorder,
        prices=own_prices(spec.settings, spec.provider),
        gate=spec.gate,
    )
    if not count or memory.summary is None:
        return spec
    summary, covered = memory.summary, claim.before + len(claim.window) - len(spec.history) + count
    if not await patiently(lambda: store.summarize(claim, covered, summary)):
        lost()
    return replace(spec, history=memory.window(), summary=summary)
