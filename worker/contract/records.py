"""Stored bytes to values and back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec

from aiforge.core.types import COST_UNIT, ProviderCall, Usage
from worker.contract.batch.line_schemas import LineErrors
from worker.contract.schemas import (
    TERMINAL_STATES,
    Batch,
    BatchRequest,
    BatchState,
    Conversation,
    ConversationSettings,
    Paused,
    Question,
    Turn,
    TurnFailure,
    TurnRequest,
    TurnState,
)
from worker.contract.server.link import Argument

LOST: Final = "lost:"
"""Stands before the measures of calls that died with their worker: a late word of it takes them back, which
must not make the other sums fall."""
_SUMMED: Final = frozenset({"input", "output", "cached", "reasoning", "units", "estimated", "unpriced"})
"""What the record of a batch has sums of."""


class TurnOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a turn's record gains when it ends; what it took stands in its ledger."""

    answer: str | None = None
    error: TurnFailure | None = None
    model: str | None = None


class Spent(NamedTuple):
    """What calls took together. `cost` is USD, None while a price is unknown; `estimated` is the part of it
    that no provider reported."""

    usage: Usage
    cost: Decimal | None
    estimated: Decimal | None


def spent(calls: Sequence[ProviderCall]) -> Spent:
    """What a turn took that has made these calls."""
    known = [call.cost for call in calls if call.cost is not None]
    guessed = [call.cost for call in calls if call.cost is not None and call.usage and call.usage.estimated]
    priced = not any(unpriced(call) for call in calls)
    return Spent(
        usage=sum((call.usage for call in calls if call.usage is not None), Usage()),
        cost=sum(known, Decimal(0)) if priced else None,
        estimated=sum(guessed, Decimal(0)) if priced else None,
    )


def unpriced(call: ProviderCall) -> bool:
    """Whether nobody knows what a call cost that is over."""
    return call.cost is None and (call.usage is not None or call.outcome in ("ok", "lost"))


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)


def lines(values: Sequence[Any]) -> bytes:
    """Values one a line, as scripts take lists of lists."""
    return b"\n".join(map(encode, values))


def text(value: bytes | None) -> str:
    return value.decode() if value is not None else ""


def fields(flat: Sequence[bytes] | Mapping[bytes, bytes]) -> dict[str, bytes]:
    """A hash as RESP2 or RESP3 gives it."""
    if isinstance(flat, Mapping):
        return {key.decode(): value for key, value in flat.items()}
    return {flat[index].decode(): flat[index + 1] for index in range(0, len(flat), 2)}


def calls(flat: Sequence[bytes] | Mapping[bytes, bytes]) -> list[ProviderCall]:
    """The rows of a ledger, the oldest first."""
    rows = [msgspec.json.decode(row, type=ProviderCall) for row in fields(flat).values()]
    return sorted(rows, key=lambda call: position(call.at, call.call_id))


def position(at: int | None, call_id: str) -> tuple[int, int, str]:
    """Where a call stands among those of its turn or batch; what an older version wrote has no time."""
    number = call_id.rpartition(".")[2]
    return at or 0, int(number) if number.isdecimal() else 0, call_id


def seconds(milliseconds: bytes | None) -> float | None:
    return int(milliseconds) / 1000 if milliseconds is not None else None


def units(cost: Decimal | None) -> int:
    """USD as the integer that the totals add."""
    return int((cost / COST_UNIT).to_integral_value()) if cost is not None else 0


def usd(amount: int | bytes | None) -> Decimal:
    """The inverse of `units`."""
    return (Decimal(int(amount or 0)) * COST_UNIT).normalize() + Decimal(0)


def queued(turn_id: str, conversation_id: str, request: TurnRequest, now: bytes) -> Turn:
    """A turn that was stored just now."""
    return Turn(
        turn_id=turn_id,
        conversation_id=conversation_id,
        state=TurnState.QUEUED if request.run_after is None else TurnState.SCHEDULED,
        model=request.model,
        metadata=request.metadata,
        created_at=int(now) / 1000,
        run_after=request.run_after,
    )


def turn(turn_id: str, record: Mapping[str, bytes], ledger: Sequence[ProviderCall]) -> Turn:
    """A turn by its record and its ledger, which says what it took: in all of its attempts."""
    request = msgspec.json.decode(record["body"], type=TurnRequest)
    outcome = msgspec.json.decode(record.get("result", b"{}"), type=TurnOutcome)
    state = TurnState(text(record["state"]))
    made = [call for call in ledger if call.outcome != "intended"]
    took = spent(made) if made or state in TERMINAL_STATES else None
    return Turn(
        turn_id=turn_id,
        conversation_id=text(record["conversation_id"]),
        state=state,
        answer=outcome.answer,
        error=outcome.error,
        usage=took.usage if took else None,
        cost=took.cost if took else None,
        estimated_cost=took.estimated if took else None,
        attempts=int(record["attempts"]),
        model=outcome.model or (made[-1].model if made else None) or request.model,
        metadata=request.metadata,
        created_at=int(record["created_at"]) / 1000,
        finished_at=seconds(record.get("finished_at")),
        run_after=seconds(record.get("due_ms")) or request.run_after,
        question=_question(record),
    )


def _question(record: Mapping[str, bytes]) -> Question | None:
    """What the turn asks, while it does."""
    if "question" not in record:
        return None
    return msgspec.json.decode(record["paused"], type=Paused).question


def conversation(conversation_id: str, record: Mapping[str, bytes], messages: int) -> Conversation:
    settings = msgspec.json.decode(record["settings"], type=ConversationSettings)
    return Conversation(
        conversation_id=conversation_id,
        created_at=int(record["created_at"]) / 1000,
        messages=messages,
        # One that was stored before there were versions has its messages in its first.
        version=int(record.get("head", int(messages > 0))),
        baseline=int(record.get("baseline", int("head" not in record and messages > 0))),
        revision=int(record.get("revision", b"0")),
        busy="active" in record,
        system_prompt=settings.system_prompt,
        model=settings.model,
        memory=settings.memory,
        memory_k=int(record["memory_k"]),
        metadata=settings.metadata,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        tools=settings.tools,
        on_busy=settings.on_busy,
        ttl=int(record.get("ttl_ms", b"0")) // 1000 or None,
    )


def batch(batch_id: str, record: Mapping[str, bytes]) -> Batch:
    defaults = msgspec.json.decode(record["defaults"], type=BatchRequest)

    def count(name: str) -> int:
        return int(record.get(name, b"0"))

    return Batch(
        batch_id=batch_id,
        state=BatchState(text(record["state"])),
        total=count("total"),
        completed=count("completed"),
        failed=count("failed"),
        usage=Usage(
            input_tokens=count("input_tokens"),
            output_tokens=count("output_tokens"),
            cached_tokens=count("cached_tokens"),
            reasoning_tokens=count("reasoning_tokens"),
            estimated=count("estimated") > 0,
        ),
        cost=usd(count("units")),
        estimated_cost=usd(count("estimated")),
        unpriced_calls=count("unpriced"),
        metadata=defaults.metadata,
        model=defaults.model,
        created_at=int(record["created_at"]) / 1000,
        started_at=seconds(record.get("started_at")),
        finished_at=seconds(record.get("finished_at")),
        cancelled_at=seconds(record.get("cancelled_at")),
        finalizing_at=seconds(record.get("finalizing_at")),
        paused_at=seconds(record.get("paused_at")),
        waits_until=_ahead(seconds(record.get("waits_until"))),
        expires_at=seconds(record.get("expires_at")),
        completion_window=defaults.completion_window,
        endpoint=defaults.endpoint,
        input_file_id=defaults.input_file_id,
        output_file_id=text(record.get("output_file")) or None,
        error_file_id=text(record.get("error_file")) or None,
        errors=msgspec.json.decode(record["errors"], type=LineErrors) if "errors" in record else None,
        saved_calls=count("saved"),
        max_cost=defaults.max_cost,
        cache_ttl=defaults.cache_ttl or None,
    )


def _ahead(moment: float | None) -> float | None:
    """None for what is past."""
    return moment if moment is not None and moment > time.time() else None


def settled(calls: Sequence[ProviderCall]) -> list[Argument]:
    """Calls as the scripts take them: id, row, number of amounts, amounts…"""
    arguments: list[Argument] = []
    for call in calls:
        amounts = _amounts(call)
        arguments += [call.call_id, encode(call), len(amounts), *amounts]
    return arguments


def sums(calls: Sequence[ProviderCall]) -> list[Argument]:
    """What calls took together: measure, amount, …"""
    taken: dict[str, int] = {}
    for call in calls:
        amounts = _amounts(call)
        for name, amount in zip(amounts[::2], amounts[1::2], strict=True):
            measure = str(name).rpartition("|")[2].removeprefix(LOST)
            taken[measure] = taken.get(measure, 0) + int(amount)
    return [part for measure, amount in taken.items() if measure in _SUMMED for part in (measure, amount)]


def _amounts(call: ProviderCall) -> list[Argument]:
    usage = call.usage or Usage()
    # A model that has refused may be a caller's invention: it gets no field of its own.
    spoke = call.outcome in ("ok", "lost") or usage.input_tokens or usage.output_tokens
    prefix = f"{call.provider}|{call.model if spoke else ''}|"
    counted = {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cached": usage.cached_tokens,
        "reasoning": usage.reasoning_tokens,
        "units": units(call.cost),
        "estimated": units(call.cost) if usage.estimated else 0,
        "unpriced": int(unpriced(call)),
    }
    kind = LOST if call.outcome == "lost" else ""
    measured = [part for name, amount in counted.items() if amount for part in (prefix + kind + name, amount)]
    return [f"{prefix}calls:{call.outcome}", 1, *measured]
