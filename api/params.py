"""Parameters that several routes share."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from fastapi import Header, Path, Query, Request
from pydantic.fields import FieldInfo

from api import patterns, wording
from api.errors import LONGEST_PARAM, Problem
from worker.contract.checks import check_key
from worker.contract.errors import InvalidInput

ID: Final = patterns.ID
TURN: Final = patterns.TURN
BATCH: Final = patterns.BATCH
FILE: Final = patterns.FILE
_LONGEST_WAIT: Final = 300
_NUMBERS: Final = frozenset({int, float})
_PLAIN: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?")
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

ConversationId = Annotated[str, Path(pattern=ID, max_length=128, examples=["user-42"])]
TurnId = Annotated[str, Path(pattern=TURN, examples=["171f0a93c2d4e5b6a7f809"])]
BatchId = Annotated[str, Path(pattern=BATCH, examples=["batch_171f0a93c2d4e5b6a7f809"])]
FileId = Annotated[str, Path(pattern=FILE, examples=["file-171f0a93c2d4e5b6a7f809"])]
ScheduleId = Annotated[str, Path(pattern=patterns.SCHEDULE, examples=["sched_171f0a93c2d4e5b6a7f809"])]
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
    Header(alias="Idempotency-Key", pattern=patterns.KEY, description="Posted twice, it is taken once."),
]
After = Annotated[int, Query(ge=0, le=2**53, description="How many to skip.")]
Limit = Annotated[int, Query(ge=1, le=1000)]
LastEventId = Annotated[
    int | None, Header(alias="Last-Event-ID", ge=0, le=2**53, description="The last id that was read.")
]
AfterEvent = Annotated[
    int | None, Query(ge=0, le=2**53, description="The same as Last-Event-ID, which wins.")
]
Accept = Annotated[str, Header(include_in_schema=False)]
"""OpenAPI names media types under the replies, never as a header."""


async def known_query(request: Request) -> None:
    """Refuse by name what this route would ignore or read as something else."""
    wanted = request.scope["route"].dependant
    if request.scope["query_string"]:
        known = {parameter.alias: parameter.field_info for parameter in wanted.query_params}
        seen: set[str] = set()
        for name, value in request.query_params.multi_items():
            if name not in known:
                others = f"known: {', '.join(known)}" if known else "this route has none"
                raise Problem(
                    400,
                    "unknown_parameter",
                    f"{name[:LONGEST_PARAM]}: no such parameter; {others}",
                    param=name,
                )
            if name in seen and not any(get_origin(kind) is list for kind in _kinds(known[name].annotation)):
                raise Problem(400, "invalid_value", f"{name}: stands here twice", param=name)
            seen.add(name)
            _check_form(name, known[name], value)
    for parameter in wanted.header_params:
        for value in request.headers.getlist(parameter.alias):
            _check_form(parameter.alias, parameter.field_info, value)


def _kinds(annotation: Any) -> set[Any]:
    """The type itself and, of a union, its members."""
    return {annotation, *get_args(annotation)}


def _check_form(name: str, info: FieldInfo, value: str) -> None:
    """Python would also read `1_0`, ` 10` and digits of other scripts; and as a day, without its time zone, a
    moment that is on another day in UTC, or a number of seconds."""
    kinds = _kinds(info.annotation)
    if not _NUMBERS.isdisjoint(kinds) and not _PLAIN.fullmatch(value):
        said = f"{name}: must be {wording.of_parameter(info)}, in plain digits"
        raise Problem(400, "invalid_value", said, param=name)
    if date in kinds and not _DAY.fullmatch(value):
        raise Problem(400, "invalid_value", f"{name}: must be {wording.of_parameter(info)}", param=name)


def cursor_of(text: str | None) -> tuple[int, str] | None:
    """Time and id of the last thing that a page showed, as its `next` says them."""
    when, _, name = (text or "").partition(":")
    return (int(when), name) if text else None


def stream_start(last_event_id: int | None, after: int | None, last: int, what: str) -> int:
    """The number behind which a stream begins; refuses one behind the `last` there is of `what`."""
    start = last_event_id if last_event_id is not None else after or 0
    if start > last:
        param = "after" if last_event_id is None else "Last-Event-ID"
        raise Problem(400, "invalid_value", f"{param}: {what} is {last} so far", param=param)
    return start


def check_field_key(field: str, key: str) -> None:
    """Refuse what cannot be an idempotency key, naming the field that holds it."""
    said = patterns.IN_WORDS[patterns.KEY]
    try:
        check_key(key)
    except InvalidInput as error:
        raise Problem(400, error.code, f"{field}: must be {said}", param=field) from None


async def no_key(request: Request) -> None:
    """Refuse an idempotency key where posting twice would still be taken twice."""
    if "idempotency-key" in request.headers:
        raise Problem(
            400, "unsupported_header", "Idempotency-Key: not on this route", param="Idempotency-Key"
        )
