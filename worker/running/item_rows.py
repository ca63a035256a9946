"""What became of an item, as the row of its batch."""

from __future__ import annotations

import logging
from decimal import Decimal

import msgspec

from aiforge.core.completions import Answer
from aiforge.core.types import AIForgeError, Usage
from aiforge.modules.chat.agent import TurnResult
from worker import metrics
from worker.calls.ledger import Recorder
from worker.contract.batch.answers import KeptAnswer
from worker.contract.batch.line_schemas import LineItem, LineResponse
from worker.contract.schemas import BatchItem, BatchRow, Lane, TurnFailure
from worker.running.failures import OWN_ERROR, failure_of
from worker.running.item_turns import TurnEnded, line_response

_log = logging.getLogger(__name__)
_LANE = Lane.BATCH.value


def turn_row(
    index: int, item: BatchItem, ended: TurnEnded | BaseException, seconds: float, endpoint: str | None
) -> BatchRow:
    """Of an item that is a turn; `seconds` is how long it was waited for."""
    turn = calls = error = None
    match ended:
        case TurnEnded():
            turn, calls = ended.turn, ended.calls
            error = turn.error if ended.failure is None else failure_of(ended.failure)
        case AIForgeError():
            error = failure_of(ended)
        case _:
            error = _crashed(ended)
    _count(error)
    return BatchRow(
        index=index,
        id=item.id,
        status="error" if error else "ok",
        answer=turn.answer if turn and not error and not endpoint else None,
        error=error,
        model=turn.model if turn else None,
        usage=turn.usage if turn else None,
        cost=turn.cost if turn else None,
        latency_ms=round(seconds * 1000, 1),
        attempts=len(calls or []),
        response=line_response(endpoint, turn) if turn and endpoint and not error else None,
    )


def item_row(
    index: int,
    item: BatchItem | LineItem,
    ended: TurnResult | Answer | KeptAnswer | BaseException,
    recorder: Recorder,
    seconds: float,
) -> BatchRow:
    """Of an item of its own; `recorder` knows its provider calls."""
    answer = error = response = None
    match ended:
        case TurnResult():
            answer = ended.answer
        case KeptAnswer():
            answer, response = ended.answer, ended.response
        case Answer():
            response = LineResponse(
                status_code=ended.status, request_id=ended.request_id, body=msgspec.Raw(ended.body)
            )
            if ended.failure is not None:
                error = failure_of(ended.failure)
        case AIForgeError():
            error = failure_of(ended)
        case _:
            error = _crashed(ended)
    _count(error)
    made = recorder.made
    paid = [call for call in made if call.usage is not None]
    return BatchRow(
        index=index,
        id=item.id,
        status="error" if error else "ok",
        answer=answer,
        error=error,
        model=ended.model if isinstance(ended, KeptAnswer) else made[-1].model if made else None,
        usage=sum((call.usage for call in paid if call.usage is not None), Usage()) if paid else None,
        cost=_sum([call.cost for call in paid]),
        latency_ms=round(seconds * 1000, 1),
        attempts=len(made),
        response=response,
        cached=isinstance(ended, KeptAnswer),
    )


def _crashed(error: BaseException) -> TurnFailure:
    _log.error("item_crashed", exc_info=error)
    return OWN_ERROR


def _count(error: TurnFailure | None) -> None:
    metrics.ITEMS.labels("failed" if error else "completed").inc()
    if error is not None:
        metrics.count_failure(_LANE, error.code)


def _sum(costs: list[Decimal | None]) -> Decimal | None:
    """None when any of them is unknown: unknown is not zero."""
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal(0)) if len(known) == len(costs) else None
