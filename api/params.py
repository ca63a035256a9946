"""Parameters that several routes share."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from fastapi import Header, Path, Query, Request

from api.errors import LONGEST_PARAM, Problem

ID: Final = r"^(?:\.{0,2}[A-Za-z0-9_-]|\.{3})[A-Za-z0-9._-]*$"
"""Neither `.` nor `..`, which a URL's reader takes for the way to another page."""
_TURN: Final = r"^[0-9]{2}[0-9a-f]{20}$"
BATCH: Final = r"^batch_[0-9]{2}[0-9a-f]{20}$"
FILE: Final = r"^file-[0-9]{2}[0-9a-f]{20}$"
_SCHEDULE: Final = r"^sched_[0-9]{2}[0-9a-f]{20}$"
_LONGEST_WAIT: Final = 300
_NUMBERS: Final = frozenset({int, float})
_PLAIN: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?")

ConversationId = Annotated[str, Path(pattern=ID, max_length=128, examples=["user-42"])]
TurnId = Annotated[str, Path(pattern=_TURN, examples=["171f0a93c2d4e5b6a7f809"])]
BatchId = Annotated[str, Path(pattern=BATCH, examples=["batch_171f0a93c2d4e5b6a7f809"])]
FileId = Annotated[str, Path(pattern=FILE, examples=["file-171f0a93c2d4e5b6a7f809"])]
ScheduleId = Annotated[str, Path(pattern=_SCHEDULE, examples=["sched_171f0a93c2d4e5b6a7f809"])]
Wait = Annotated[
    float | None,
    Query(ge=0, le=_LONGEST_WAIT, allow_inf_nan=False, description="Seconds to wait for the turn to end."),
]
OnDisconnect = Annotated[
    Literal["continue", "cancel"],
    Query(description="What becomes of the turn when its caller leaves before the end."),
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
    """Refuse by name what this route would ignore or read as something else."""
    wanted = request.scope["route"].dependant
    if request.scope["query_string"]:
        known = {parameter.alias: parameter.field_info.annotation for parameter in wanted.query_params}
        seen: set[str] = set()
        for name, value in request.query_params.multi_items():
            if name not in known:
                raise Problem(
                    400, "unknown_parameter", f"{name[:LONGEST_PARAM]}: no such parameter", param=name
                )
            if name in seen and not any(get_origin(kind) is list for kind in _kinds(known[name])):
                raise Problem(400, "invalid_value", f"{name}: stands here twice", param=name)
            seen.add(name)
            _check_number(name, known[name], value)
    for parameter in wanted.header_params:
        for value in request.headers.getlist(parameter.alias):
            _check_number(parameter.alias, parameter.field_info.annotation, value)


def _kinds(annotation: Any) -> set[Any]:
    """The type itself and, of a union, its members."""
    return {annotation, *get_args(annotation)}


def _check_number(name: str, annotation: Any, value: str) -> None:
    """Python would also read `1_0`, ` 10` and digits of other scripts."""
    if not _NUMBERS.isdisjoint(_kinds(annotation)) and not _PLAIN.fullmatch(value):
        raise Problem(400, "invalid_value", f"{name}: must be a plain number", param=name)


async def no_key(request: Request) -> None:
    """Refuse an idempotency key where posting twice would still be taken twice."""
    if "idempotency-key" in request.headers:
        raise Problem(
            400, "unsupported_header", "Idempotency-Key: not on this route", param="Idempotency-Key"
        )
