"""What `/openapi.json` says of batches."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from api.schemas import Defaults, Money, Parts, TurnFailure, Usage
from worker.contract.batch.files import LONGEST_LIFE, SHORTEST_LIFE
from worker.contract.checks import LONGEST_CACHE
from worker.contract.schemas import MAX_BATCH_ITEMS, BatchState


class OutputExpiry(BaseModel):
    """How long the files of the results live."""

    model_config = ConfigDict(extra="forbid")

    anchor: Literal["created_at"]
    seconds: int = Field(ge=SHORTEST_LIFE, le=LONGEST_LIFE)


class BatchItem(Defaults):
    """One question, independent of all others unless it names a conversation."""

    message: str | Parts
    id: str | None = Field(None, description="The caller's own id; it comes back with the answer.")
    conversation: str | None = Field(
        None,
        description=(
            "The conversation that this is a turn of. Items of one conversation are answered in order, those"
            " of different ones at the same time."
        ),
        examples=["user-42"],
    )


class BatchBody(Defaults):
    """Items, and what holds for every item that does not say otherwise; or OpenAI's form: the id of a file
    of requests, its endpoint and a completion window. `metadata.on_invalid` is `fail`, or `skip` to leave out
    the lines that are wrong. A line with `conversation` beside its `custom_id` is a turn of that one: its one
    user message goes on from what the conversation remembers."""

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
                    "cache_ttl": 86400,
                },
            ]
        },
    )

    items: list[BatchItem | str] = Field([], max_length=MAX_BATCH_ITEMS)
    input_file_id: str | None = Field(None, examples=["file-171f0a93c2d4e5b6a7f809"])
    endpoint: Literal["/v1/chat/completions", "/v1/responses"] | None = None
    completion_window: str | None = Field(
        None, description="How long the batch may take, up to 30 days: `90s`, `45m`, `24h`, `7d`."
    )
    output_expires_after: OutputExpiry | None = None
    max_cost: Money | None = Field(
        None,
        description="USD that the batch's provider calls may cost; items for which no room is left fail"
        " with `budget_exceeded`.",
    )
    dedupe: bool = Field(
        False, description="What is asked twice is answered once; with temperature 0 it always is."
    )
    cache_ttl: int | None = Field(
        None,
        ge=1,
        le=LONGEST_CACHE,
        description="Seconds. What an earlier batch was answered no longer ago is not asked again, and what"
        " is answered now is kept for so long; `DELETE /v1/cache` erases it. What is asked twice in the batch"
        " is answered once.",
        examples=[86400],
    )


class RequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


class LineError(BaseModel):
    code: str
    message: str
    line: int | None = Field(description="Counted from 1.")
    param: str | None


class LineErrors(BaseModel):
    object: Literal["list"]
    data: list[LineError]


class Batch(BaseModel):
    """OpenAI's batch object, with what the batch cost. Times are whole Unix seconds.

    File ids are null until the files can be read, and when there is nothing in them.
    """

    id: str = Field(examples=["batch_171f0a93c2d4e5b6a7f809"])
    object: Literal["batch"]
    endpoint: str
    errors: LineErrors | None = Field(description="Why the batch has failed: up to 100 wrong lines.")
    input_file_id: str = Field(description="`inline` where the items came in the request.")
    output_file_id: str | None
    error_file_id: str | None
    completion_window: str
    status: BatchState
    created_at: int
    in_progress_at: int | None
    expires_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    model: str | None
    metadata: dict[str, str] | None
    usage: dict[str, Any] = Field(description="Sums in OpenAI's form, beside the fields of a turn's usage.")
    cost: Money = Field(description="USD as a decimal string, of the calls whose price is known.")
    estimated_cost: Money = Field(description="The part of `cost` that no provider reported.")
    unpriced_calls: int = Field(description="Calls that `cost` does not hold because no price is known.")
    max_cost: Money | None
    paused_at: int | None
    waits_until: int | None = Field(description="Until then no item begins, because a budget has no room.")
    saved_calls: int = Field(
        description="Items that were answered by the answer to another one, of this or an earlier batch."
    )
    cache_ttl: int | None
    invalid_lines: int = Field(description="How many lines are wrong in a batch that has failed.")


class Batches(BaseModel):
    object: Literal["list"]
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchDeleted(BaseModel):
    id: str
    object: Literal["batch"]
    deleted: Literal[True]


class LineResponse(BaseModel):
    """What the provider answered to a line of a file."""

    status_code: int
    request_id: str
    body: dict[str, Any]


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
    response: LineResponse | None = Field(description="Of a line of a file.")
    deduplicated: int | None = Field(description="The index of the item whose answer this is, too.")
    cached: bool = Field(description="The answer is one that an earlier batch was given; it cost nothing.")


class CacheErased(BaseModel):
    """How many answers were kept until now."""

    object: Literal["cache"]
    deleted: Literal[True]
    answers: int


UNREFERENCED: Final[tuple[type[BaseModel], ...]] = (BatchBody, BatchRow)
"""As in `api.schemas`."""
