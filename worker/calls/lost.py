"""What a dead attempt's open calls are estimated to have cost: nobody is left who could tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from aiforge.core.completions import longest_answer
from aiforge.core.events import Event, Reset, Token
from aiforge.core.pricing import Price, price, price_list
from aiforge.core.tokens import estimate_usage, usual_answer
from aiforge.core.types import ProviderCall, Usage
from worker.contract.batch.batches import BatchStore, Slice
from worker.contract.batch.line_schemas import LineItem
from worker.contract.places import Place
from worker.contract.schemas import BatchItem, BatchRequest
from worker.contract.store import TurnStore

Prices: TypeAlias = Mapping[str, Price]
"""Own prices by `provider/model`."""


async def lost_calls(store: TurnStore, place: Place, prices: Prices) -> list[ProviderCall]:
    """The open calls of a turn as `lost`: prompt, memory and message went in, what readers saw came out.

    None where a newer version wrote the turn.
    """
    opened = [call for call in await store.calls(place.turn_id) if call.outcome == "intended"]
    if not opened:
        return []
    try:
        left = await store.left_behind(place)
    except msgspec.MsgspecError:
        return []  # of a newer version: what they cost is not known here
    prompt = _prompt(left.request, left.settings)
    told = [*(message.content for message in left.window), left.request.message]
    usage = estimate_usage([{"content": text} for text in (*prompt, *told)], None, _said(left.events))
    named = left.settings.model if left.request.model is None else left.request.model
    return [_lost(call, named, usage, prices) for call in opened]


async def lost_items(store: BatchStore, taken: Slice, prices: Prices) -> list[ProviderCall]:
    """The open calls of a slice as `lost`: the item went in, and a usual answer came out.

    Its items are run one after the other, so only the first that has open calls can have been asked.
    """
    opened = {call.call_id: call for call in await store.calls(taken) if call.outcome == "intended"}
    for index, item in taken.items:
        prefix = f"{taken.batch_id}.{taken.token}.{index}."
        mine = [call for call_id, call in opened.items() if call_id.startswith(prefix)]
        if not mine:
            continue
        asked = _asked(item, taken.defaults)
        usage = estimate_usage([{"content": text} for text in (*asked.prompt, asked.text)], None, "")
        usage = msgspec.structs.replace(usage, output_tokens=usual_answer(asked.max_tokens or None))
        return [_lost(call, asked.model, usage, prices) for call in mine]
    return []


def _lost(call: ProviderCall, named: str | None, usage: Usage, prices: Prices) -> ProviderCall:
    """The first call was entered by the claim, before it was known which model is `named`."""
    model = named if named is not None and call.call_id.endswith(".1") else call.model
    return msgspec.structs.replace(
        call,
        outcome="lost",
        model=model,
        usage=usage,
        cost=price(call.provider, model, usage, prices),
        price_list=price_list(call.provider, model, prices),
    )


class _Asked(NamedTuple):
    prompt: list[str]
    text: str | list[dict[str, Any]]
    model: str | None
    max_tokens: int | None


class _Prompted(Protocol):
    @property
    def system_prompt(self) -> str | None: ...


def _prompt(*of: _Prompted) -> list[str]:
    """The system prompt that callers have given, if any."""
    return [one.system_prompt for one in of if one.system_prompt is not None][:1]


class _Body(msgspec.Struct):
    model: Any = None


def _asked(item: BatchItem | LineItem, defaults: BatchRequest) -> _Asked:
    if isinstance(item, BatchItem):
        most = item.max_tokens if item.max_tokens is not None else defaults.max_tokens
        return _Asked(_prompt(item, defaults), item.message, item.model or defaults.model, most)
    model = msgspec.json.decode(item.body, type=_Body).model
    return _Asked([], bytes(item.body).decode(), model, longest_answer(item.body))


def _said(events: list[Event]) -> str:
    """The tokens since the latest reset."""
    texts: list[str] = []
    for event in events:
        if isinstance(event, Reset):
            texts.clear()
        elif isinstance(event, Token):
            texts.append(event.text)
    return "".join(texts)
