"""What a dead attempt's open calls are estimated to have cost: nobody is left who could tell."""

from __future__ import annotations

import msgspec

from aiforge.core.events import Event, Reset, Token
from aiforge.core.pricing import price
from aiforge.core.tokens import estimate_usage
from aiforge.core.types import ProviderCall
from worker.contract.batches import BatchStore, Slice
from worker.contract.store import Place, TurnStore


async def lost_calls(store: TurnStore, place: Place) -> list[ProviderCall]:
    """The open calls of a turn as `lost`: memory and message went in, what readers saw came out."""
    opened = [call for call in await store.calls(place.turn_id) if call.outcome == "intended"]
    if not opened:
        return []
    request, window, events = await store.left_behind(place)
    sent = [{"content": message.content} for message in window] + [{"content": request.message}]
    usage = estimate_usage(sent, None, _said(events))
    return [
        msgspec.structs.replace(
            call,
            outcome="lost",
            model=request.model or call.model,
            usage=usage,
            cost=price(call.provider, request.model or call.model, usage),
        )
        for call in opened
    ]


async def lost_items(store: BatchStore, taken: Slice) -> list[ProviderCall]:
    """The open calls of a slice as `lost`."""
    opened = [call for call in await store.calls(taken) if call.outcome == "intended"]
    return [msgspec.structs.replace(call, outcome="lost") for call in opened]


def _said(events: list[Event]) -> str:
    """The tokens since the latest reset."""
    texts: list[str] = []
    for event in events:
        if isinstance(event, Reset):
            texts.clear()
        elif isinstance(event, Token):
            texts.append(event.text)
    return "".join(texts)
