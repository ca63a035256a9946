"""What can go wrong between a caller and the service.

    ClientError
    ├── RequestError            the request cannot be sent as it is
    ├── UnreachableError        no connection, or no answer in time
    ├── ProtocolError           the answer is not one that the service gives
    └── APIError                the service said no: status, code, param, request_id
        ├── BadRequestError     400, 413, 415, 422: the request itself is wrong
        ├── UnauthorizedError   401, 403
        ├── NotFoundError       404, 410
        ├── ConflictError       409
        ├── RateLimitedError    429
        └── ServerError         5xx

A turn that fails is no error of this kind: `Turn.error` says why.
"""

from __future__ import annotations

from typing import Final

import httpx
import msgspec

from aiforge.core.types import AIForgeError


class ClientError(AIForgeError):
    """The root: no answer of the kind that was asked for."""

    code = "client_error"


class RequestError(ClientError):
    """The request cannot be sent as it is; the message names the part."""

    code = "invalid_request"


class UnreachableError(ClientError):
    """No connection to the service, or no answer in time."""

    code = "unreachable"
    retryable = True


class ProtocolError(ClientError):
    """The answer is not one that the service gives; probably something else listens there."""

    code = "protocol_error"


class APIError(ClientError):
    """The service answered with its error shape; `retry_after` is in seconds or None."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        type: str = "",  # noqa: A002  # the wire's own name
        param: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code  # type: ignore[misc]  # the service's code, not the class's
        self.type = type
        self.param = param
        self.request_id = request_id
        self.retry_after = retry_after
        self.retryable = status == 429 or status >= 500


class BadRequestError(APIError):
    """The request itself is wrong; `param` names the field."""


class UnauthorizedError(APIError):
    """The API token is missing, wrong or not allowed here."""


class NotFoundError(APIError):
    """There is no such turn, conversation or batch, or it was erased (code `gone`)."""


class ConflictError(APIError):
    """The state of what is there does not allow it; `code` says why."""


class RateLimitedError(APIError):
    """Too many requests; `retry_after` says when to come back."""


class ServerError(APIError):
    """The service cannot serve now."""


_BY_STATUS: Final[dict[int, type[APIError]]] = {
    401: UnauthorizedError,
    403: UnauthorizedError,
    404: NotFoundError,
    409: ConflictError,
    410: NotFoundError,
    429: RateLimitedError,
}


class _Body(msgspec.Struct):
    message: str
    code: str
    type: str = ""
    param: str | None = None


class _Shape(msgspec.Struct):
    error: _Body


def from_response(response: httpx.Response) -> ClientError:
    """The error behind a reply that is no 2xx; its body has been read."""
    try:
        body = msgspec.json.decode(response.content, type=_Shape).error
    except msgspec.MsgspecError:
        asked = response.request.url.copy_with(query=None)
        return ProtocolError(f"{asked} answered {response.status_code} without an AIForge error")
    status = response.status_code
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else BadRequestError)
    return kind(
        body.message,
        status=status,
        code=body.code,
        type=body.type,
        param=body.param,
        request_id=response.headers.get("x-request-id"),
        retry_after=retry_after(response),
    )


def from_transport(error: httpx.HTTPError, base_url: str) -> UnreachableError:
    """The error behind a connection that failed."""
    if isinstance(error, httpx.TimeoutException):
        return UnreachableError(f"{base_url} did not answer in time")
    return UnreachableError(f"cannot reach {base_url}: {error or type(error).__name__}")


def retry_after(response: httpx.Response) -> float | None:
    """In how many seconds the service wants to be asked again, None where it does not say."""
    asked = response.headers.get("retry-after", "")
    return float(asked) if asked.isascii() and asked.isdigit() else None
