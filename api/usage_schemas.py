"""What `/openapi.json` says of usage."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class UsageRow(BaseModel):
    """The provider calls of one group, whatever became of their turns."""

    day: str | None = Field(None, description="UTC; stands here when it is grouped by.")
    provider: str | None = None
    model: str | None = None
    purpose: str | None = Field(None, description="What the calls were for: answer, summary, …")
    calls: int
    failed_calls: int
    lost_calls: int = Field(description="Calls whose worker died; they hold no tokens here.")
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost: str = Field(description="USD as a decimal string, of the calls whose price is known.")
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
    total_cost: str
