"""What `/openapi.json` says of usage."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from api.schemas import Money, Usage


class UsageRow(BaseModel):
    """The provider calls of one group, whatever became of their turns."""

    day: str | None = Field(None, description="UTC; stands here when it is grouped by.")
    provider: str | None = None
    model: str | None = None
    purpose: str | None = Field(None, description="What the calls were for: answer, summary, …")
    calls: int
    failed_calls: int
    lost_calls: int = Field(description="Calls whose worker died; what they took is estimated.")
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost: Money = Field(description="USD as a decimal string, of the calls whose price is known.")
    estimated_cost: Money = Field(
        description="The part of `cost` that no provider reported: stopped answers, workers that died."
    )
    unpriced_calls: int


class UsageReport(BaseModel):
    """Rows, sorted by what they are grouped by."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "data": [
                        {
                            "model": "gpt-4o-mini",
                            "calls": 213,
                            "failed_calls": 12,
                            "lost_calls": 1,
                            "input_tokens": 9120,
                            "output_tokens": 10240,
                            "cached_tokens": 0,
                            "reasoning_tokens": 0,
                            "cost": "0.007512",
                            "estimated_cost": "0.00003",
                            "unpriced_calls": 0,
                        }
                    ],
                    "total_cost": "0.007512",
                }
            ]
        }
    )

    object: Literal["list"]
    data: list[UsageRow]
    total_cost: Money


class LedgerRow(BaseModel):
    """A provider call, whose it is and what became of it; nothing of what was asked and answered."""

    call_id: str = Field(description="The provider gets it as a header.")
    turn_id: str | None
    batch_id: str | None
    index: int | None = Field(description="Of the batch's item.")
    attempt: int | None = Field(
        description="Of the turn, or of the item's slice in the batch's present run, from 1; a hand-back and"
        " a pause count for none. Null where an older version wrote the row."
    )
    at: float | None = Field(description="When it was entered, in Unix seconds.")
    purpose: Literal["answer", "tool_round", "summary"]
    provider: str
    model: str
    outcome: Literal["intended", "ok", "error", "aborted", "lost"] = Field(
        description="`intended` while it is under way, `aborted` when its turn was stopped, `lost` when its"
        " worker died."
    )
    usage: Usage | None = Field(description="`estimated` where the provider did not report it.")
    cost: Money | None = Field(description="USD as a decimal string; null where it is not known.")
    price_list: str | None = Field(description="`own`, or the list of prices and its version.")
    error_code: str | None
    latency_ms: float | None
    first_token_ms: float | None


class LedgerRows(BaseModel):
    """A page of rows."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "data": [
                        {
                            "call_id": "171f0a93c2d4e5b6a7f809.5b1c09ae.1",
                            "turn_id": "171f0a93c2d4e5b6a7f809",
                            "batch_id": None,
                            "index": None,
                            "attempt": 1,
                            "at": 1767225600.25,
                            "purpose": "answer",
                            "provider": "openai",
                            "model": "gpt-4o-mini",
                            "outcome": "ok",
                            "usage": {
                                "input_tokens": 40,
                                "output_tokens": 150,
                                "cached_tokens": 0,
                                "cache_write_tokens": 0,
                                "reasoning_tokens": 0,
                                "estimated": False,
                                "input_audio_tokens": 0,
                                "output_audio_tokens": 0,
                            },
                            "cost": "0.000096",
                            "price_list": "own",
                            "error_code": None,
                            "latency_ms": 812.5,
                            "first_token_ms": 204.0,
                        }
                    ],
                    "has_more": False,
                    "next": None,
                }
            ]
        }
    )

    object: Literal["list"]
    data: list[LedgerRow]
    has_more: bool
    next: str | None = Field(description="What `after` has to be for the next page.")
