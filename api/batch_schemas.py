"""What `/openapi.json` says of batches."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.schemas import Defaults, Money, Parts, TurnFailure, Usage
from worker.contract.schemas import MAX_BATCH_ITEMS, BatchState


class BatchItem(Defaults):
    """One independent question."""

    message: str | Parts
    id: str | None = Field(None, description="The caller's own id; it comes back with the answer.")


class BatchBody(Defaults):
    """Items, and what holds for every item that does not say otherwise."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "items": [
                        {"id": "faq-1", "message": "Where is my order?"},
                        {"id": "faq-2", "message": "Wie kündige ich?", "max_tokens": 200},
                        "An item may be just its message.",
                    ],
                    "model": "gpt-4o-mini",
                    "metadata": {"run": "nightly"},
                }
            ]
        },
    )

    items: list[BatchItem | str] = Field(min_length=1, max_length=MAX_BATCH_ITEMS)


class RequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


class Batch(BaseModel):
    """OpenAI's batch object, with what the batch cost. Times are whole Unix seconds."""

    id: str = Field(examples=["batch_171f0a93c2d4e5b6a7f809"])
    object: Literal["batch"]
    endpoint: str
    errors: None
    input_file_id: Literal["inline"]
    output_file_id: None
    error_file_id: None
    completion_window: str
    status: BatchState
    created_at: int
    in_progress_at: int | None
    expires_at: None
    finalizing_at: None
    completed_at: int | None
    failed_at: None
    expired_at: None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    model: str | None
    metadata: dict[str, str] | None
    usage: dict[str, Any] = Field(description="Sums in OpenAI's form, beside the fields of a turn's usage.")
    cost: Money = Field(description="USD as a decimal string, of the calls whose price is known.")
    unpriced_calls: int = Field(description="Calls that `cost` does not hold because no price is known.")


class BatchRow(BaseModel):
    """The result of one item; `index` counts from 0 in the order of the items."""

    index: int
    id: str | None
    status: Literal["ok", "error"]
    answer: str | None
    error: TurnFailure | None
    model: str | None
    usage: Usage | None
    cost: Money | None
    latency_ms: float | None
    attempts: int


UNREFERENCED: Final[tuple[type[BaseModel], ...]] = (BatchBody, BatchRow)
"""As in `api.schemas`."""
