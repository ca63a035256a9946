"""Stored bytes to values and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from aiforge.core.types import ProviderCall, Usage
from worker.contract.batch.line_schemas import LineErrors
from worker.contract.schemas import (
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

UNIT: Final = Decimal("1e-12")
"""Totals are kept as integers of this many USD."""
_SUMMED: Final = frozenset({"input", "output", "cached", "reasoning", "units", "unpriced"})
"""What the record of a batch has sums of."""


class TurnOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a turn's record gains when it ends."""

    answer: str | None = None
    error: TurnFailure | None = None
    usage: Usage | None = None
    cost: Decimal | None = None
    model: str | None = None


def spent(calls: Sequence[ProviderCall]) -> TurnOutcome:
    """What a turn took that has made these calls; its cost is None while one of them has no price."""
    reported = [call for call in calls if call.usage is not None]
    priced = all(call.cost is not None for call in reported)
    return TurnOutcome(
        usage=sum((call.usage for call in reported if call.usage is not None), Usage()),
        cost=sum((call.cost for call in calls if call.cost is not None), Decimal(0)) if priced else None,
        model=calls[-1].model if calls else None,
    )


def encode(value: Any) -> bytes:
    return msgspec.json.encode(value)


def text(value: bytes | None) -> str:
    return value.decode() if value is not None else ""


def fields(flat: Sequence[bytes] | Mapping[bytes, bytes]) -> dict[str, bytes]:
    """A hash as RESP2 or RESP3 gives it."""
    if isinstance(flat, Mapping):
        return {key.decode(): value for key, value in flat.items()}
    return {flat[index].decode(): flat[index + 1] for index in range(0, len(flat), 2)}


def seconds(milliseconds: bytes | None) -> float | None:
    return int(milliseconds) / 1000 if milliseconds is not None else None


def units(cost: Decimal | None) -> int:
    """USD as the integer that the totals add."""
    return int((cost / UNIT).to_integral_value()) if cost is not None else 0


def usd(amount: int | bytes | None) -> Decimal:
    """The inverse of `units`."""
    return (Decimal(int(amount or 0)) * UNIT).normalize() + Decimal(0)


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


def turn(turn_id: str, record: Mapping[str, bytes]) -> Turn:
    request = msgspec.json.decode(record["body"], type=TurnRequest)
    outcome = msgspec.json.decode(record.get("result", b"{}"), type=TurnOutcome)
    if outcome.usage is None:
        # It waits for a human, or ended there: nobody but its pause told what it had taken by then.
        took = msgspec.json.decode(record.get("spent", b"{}"), type=TurnOutcome)
        outcome = msgspec.structs.replace(outcome, usage=took.usage, cost=took.cost, model=took.model)
    return Turn(
        turn_id=turn_id,
        conversation_id=text(record["conversation_id"]),
        state=TurnState(text(record["state"])),
        answer=outcome.answer,
        error=outcome.error,
        usage=outcome.usage,
        cost=outcome.cost,
        attempts=int(record["attempts"]),
        model=outcome.model or request.model,
        metadata=request.metadata,
        created_at=int(record["created_at"]) / 1000,
        finished_at=seconds(record.get("finished_at")),
        run_after=request.run_after,
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
        ),
        cost=usd(count("units")),
        unpriced_calls=count("unpriced"),
        metadata=defaults.metadata,
        model=defaults.model,
        created_at=int(record["created_at"]) / 1000,
        started_at=seconds(record.get("started_at")),
        finished_at=seconds(record.get("finished_at")),
        cancelled_at=seconds(record.get("cancelled_at")),
        finalizing_at=seconds(record.get("finalizing_at")),
        paused_at=seconds(record.get("paused_at")),
        expires_at=seconds(record.get("expires_at")),
        completion_window=defaults.completion_window,
        endpoint=defaults.endpoint,
        input_file_id=defaults.input_file_id,
        output_file_id=text(record.get("output_file")) or None,
        error_file_id=text(record.get("error_file")) or None,
        errors=msgspec.json.decode(record["errors"], type=LineErrors) if "errors" in record else None,
        saved_calls=count("saved"),
        max_cost=defaults.max_cost,
    )


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
            measure = str(name).rpartition("|")[2]
            taken[measure] = taken.get(measure, 0) + int(amount)
    return [part for measure, amount in taken.items() if measure in _SUMMED for part in (measure, amount)]


def _amounts(call: ProviderCall) -> list[Argument]:
    if call.outcome == "lost":
        # Its estimate stands in its row; the totals hold what was reported.
        return [f"{call.provider}||calls:lost", 1]
    usage = call.usage or Usage()
    # A model that never answered may be a caller's invention: it gets no field of its own.
    spoke = call.outcome == "ok" or usage.input_tokens or usage.output_tokens
    prefix = f"{call.provider}|{call.model if spoke else ''}|"
    counted = {
        f"calls:{call.outcome}": 1,
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cached": usage.cached_tokens,
        "reasoning": usage.reasoning_tokens,
        "units": units(call.cost),
        "unpriced": int(call.cost is None and call.outcome == "ok"),
    }
    return [part for name, amount in counted.items() if amount for part in (prefix + name, amount)]
