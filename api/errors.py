"""One shape for every error, and the one table from errors to HTTP statuses.

{"error": {"message": …, "type": …, "param": …, "code": …}}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api import wording
from worker.contract.errors import (
    Conflict,
    ContractError,
    Gone,
    InvalidInput,
    LimitExceeded,
    NotFound,
    Unavailable,
)

STATUSES: Final[Mapping[type[ContractError], int]] = {
    InvalidInput: 400,
    NotFound: 404,
    Conflict: 409,
    Gone: 410,
    LimitExceeded: 429,
    Unavailable: 503,
    ContractError: 500,
}

IDS: Final = frozenset({"conversation_id", "turn_id", "batch_id", "file_id", "schedule_id"})
"""A malformed one of these is 422 wherever it stands: no such thing can ever exist."""

OPENAI_IDS: Final = frozenset({"batch_id", "file_id"})
"""In a path these are ids of nothing instead, as OpenAI's clients expect: 404."""

_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ROUTING: Final = {
    404: ("route_not_found", "no such route"),
    405: ("method_not_allowed", "not on this route"),
}
LONGEST_PARAM: Final = 200


class Problem(Exception):
    """What is wrong with a request, as its caller will read it."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param[:LONGEST_PARAM] if param else None
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        return _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    def response(self) -> Response:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return Response(
            msgspec.json.encode({"error": error}),
            status_code=self.status,
            headers=self.headers,
            media_type="application/json",
        )


UNEXPECTED: Final = (
    500,
    "internal_error",
    "something went wrong on our side; the log has it under this x-request-id",
)


def install(app: FastAPI) -> None:
    """Every error that a route or the router raises leaves in the one shape."""
    app.add_exception_handler(Problem, _answer)
    app.add_exception_handler(ContractError, _answer)
    app.add_exception_handler(RequestValidationError, _answer)
    app.add_exception_handler(HTTPException, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    found = _validation(request, error) if isinstance(error, RequestValidationError) else problem(error)
    if found.code == "route_not_found" and b"%2f" in request.scope.get("raw_path", b"").lower():
        found = Problem(422, "invalid_value", "an id holds no slash", param="path")
    return found.response()


def problem(error: Exception) -> Problem:
    """Translate what routes, router and contract raise."""
    match error:
        case Problem():
            return error
        case ContractError():
            return _contract(error)
        case HTTPException():
            code, message = _ROUTING.get(error.status_code, ("bad_request", str(error.detail)))
            return Problem(error.status_code, code, message, headers=error.headers)
        case _:
            return Problem(*UNEXPECTED)


def _contract(error: ContractError) -> Problem:
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    param = error.param if isinstance(error, InvalidInput) else None
    if param in IDS:
        status = 422
    headers = {"Retry-After": "1"} if error.retryable else {}
    if isinstance(error, LimitExceeded) and error.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    if isinstance(error, Conflict) or (isinstance(error, LimitExceeded) and _in_vain(error)):
        headers["x-should-retry"] = "false"
    return Problem(status, error.code, str(error), param=param, headers=headers)


def _in_vain(error: LimitExceeded) -> bool:
    """Whether clients that try again by themselves had better not: money is for people."""
    return error.money or error.retry_after is None


def _validation(request: Request, error: RequestValidationError) -> Problem:
    """What FastAPI says of a parameter, told by what is right."""
    first = error.errors()[0]
    place, *path = (str(part) for part in first["loc"])
    name = path[0] if path else place
    wanted = request.scope["route"].dependant
    known = (*wanted.path_params, *wanted.query_params, *wanted.header_params)
    right = next((wording.of_parameter(one.field_info) for one in known if one.alias == name), first["msg"])
    if first["type"] == "missing":
        said = f"{name}: this parameter is required; it must be {right}"
        return Problem(400, "missing_parameter", said, param=name)
    if place == "path" and name in OPENAI_IDS:
        return Problem(404, NotFound.code, f"{name}: there is none such; it is {right}", param=name)
    status = 422 if place == "path" or name in IDS else 400
    return Problem(status, "invalid_value", f"{name}: must be {right}", param=name)
