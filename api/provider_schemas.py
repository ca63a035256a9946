"""What `/openapi.json` says of the health of models."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ModelHealth(BaseModel):
    """How one model fares with all workers; limits are per minute, and null where there is none."""

    name: str = Field(description="`provider/model`, and the host where it is not the usual one.")
    circuit: Literal["closed", "open", "half_open"] = Field(
        description="`open` after too many failures, `half_open` while one call finds out if it is over."
    )
    open_until: float | None = Field(description="When an open circuit lets one call through.")
    cooling_until: float | None = Field(description="Until when the provider has asked for no calls.")
    failures: int = Field(description="Failed calls in a row.")
    pace: float = Field(
        description="The share of its usual pace that the model is asked at; 1 when it is well."
    )
    chats_in_flight: int = Field(description="Calls that had to ask for a place; others are not counted.")
    items_in_flight: int
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrency: int | None


class Providers(BaseModel):
    """By name; a model that is well and has no limit does not stand here."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "object": "list",
                    "data": [
                        {
                            "name": "openai/gpt-4o-mini",
                            "circuit": "closed",
                            "open_until": None,
                            "cooling_until": 1767225612.5,
                            "failures": 0,
                            "pace": 0.5,
                            "chats_in_flight": 3,
                            "items_in_flight": 12,
                            "requests_per_minute": 500,
                            "tokens_per_minute": None,
                            "concurrency": 64,
                        }
                    ],
                }
            ]
        }
    )

    object: Literal["list"]
    data: list[ModelHealth]
