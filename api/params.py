"""Parameters that several routes share."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Header, Path, Query, Request

from api.errors import LONGEST_PARAM, Problem

_ID: Final = r"^[A-Za-z0-9._-]{1,128}$"
_TURN: Final = r"^[0-9]{2}[0-9a-f]{20}$"
_BATCH: Final = r"^batch_[0-9]{2}[0-9a-f]{20}$"
_LONGEST_WAIT: Final = 300

ConversationId = Annotated[str, Path(pattern=_ID, examples=["user-42"])]
TurnId = Annotated[str, Path(pattern=_TURN, examples=["171f0a93c2d4e5b6a7f809"])]
BatchId = Annotated[str, Path(pattern=_BATCH, examples=["batch_171f0a93c2d4e5b6a7f809"])]
Wait = Annotated[
    float | None,
    Query(ge=0, le=_LONGEST_WAIT, allow_inf_nan=False, description="Seconds to wait for the turn to end."),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", min_length=1, max_length=255, description="Posted twice, it is taken once."
    ),
]
After = Annotated[int, Query(ge=0, le=2**53, description="How many to skip.")]
Accept = Annotated[str, Header(include_in_schema=False)]
"""OpenAPI names media types under the replies, never as a header."""


async def known_query(request: Request) -> None:
    """Refuse by name what this route would ignore."""
    if request.scope["query_string"]:
        known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
        for name in request.query_params:
            if name not in known:
                raise Problem(
                    400, "unknown_parameter", f"{name[:LONGEST_PARAM]}: no such parameter", param=name
                )


async def no_key(request: Request) -> None:
    """Refuse an idempotency key where posting twice would still be taken twice."""
    if "idempotency-key" in request.headers:
        raise Problem(
            400, "unsupported_header", "Idempotency-Key: not on this route", param="Idempotency-Key"
        )
