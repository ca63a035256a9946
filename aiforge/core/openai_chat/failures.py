"""What an HTTP status, an error body and a Retry-After header mean: one table for all providers."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec
from pydantic import SecretStr

from aiforge.core.types import (
    APITimeoutError,
    AuthenticationError,
    ContextLengthError,
    ProviderError,
    RateLimitError,
    RequestRefusedError,
    UnavailableError,
)

MAX_TEXT: Final = 2048
"""How much of a provider's own words an error carries, in characters."""
LONGEST_WAIT: Final = 3_600.0
"""Seconds after which a model is asked again, however much later its provider says."""

_BY_STATUS: Final[dict[int, type[ProviderError]]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    408: APITimeoutError,
    409: UnavailableError,
    425: UnavailableError,
    429: RateLimitError,
}
_BY_WORD: Final[dict[str, int]] = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "insufficient_quota": 429,
    "tokens": 429,
    "requests": 429,
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "server_error": 500,
    "api_error": 500,
    "internal_server_error": 500,
    "internalservererror": 500,
    "overloaded_error": 503,
    "service_unavailable": 503,
    "timeout": 408,
}
"""The status that stands behind `type` or `code` of an error inside a stream, which has none."""
_TELLING: Final = frozenset({400, 413, 422})
"""Statuses of a refusal whose words say what is wrong with the request."""
_TOO_LONG: Final = re.compile(
    r"context[ _-]?(length|window|size)|maximum context|prompt is too long|input token count", re.IGNORECASE
)
"""How providers say that a request is longer than their model's window; no status of its own says so."""


def error_class(status: int) -> type[ProviderError]:
    """The class of a status that is not 2xx."""
    if status >= 500:
        return UnavailableError
    return _BY_STATUS.get(status, RequestRefusedError)


def of_text(cls: type[ProviderError], text: str) -> type[ProviderError]:
    """The class of an error whose words may say more than its status does."""
    return ContextLengthError if cls is RequestRefusedError and _TOO_LONG.search(text) else cls


def from_status(
    status: int,
    body: bytes,
    headers: Mapping[str, str],
    *,
    provider: str,
    model: str,
    secret: SecretStr | None = None,
) -> ProviderError:
    """The error for a reply that is not 2xx; `secret` never stands in it, even if the provider quotes it."""
    if 300 <= status < 400:
        # Following would hand the key to whoever the reply names.
        text = "a redirect, which is not followed; set the base URL to the final address"
    else:
        text = error_text(_json(body)) or _plain(body) or "no text"
    again = _can_repeat(status, _json(body), headers)
    said = body[: 4 * MAX_TEXT].decode("utf-8", "replace") if status in _TELLING else ""
    return of_text(error_class(status), said)(
        f"{provider} answered {status} for {model}: {without(text, secret)}",
        status=status,
        retry_after=retry_after(headers),
        provider=provider,
        model=model,
        retryable=again,
    )


def from_stream(
    error: object, *, provider: str, model: str, secret: SecretStr | None = None
) -> ProviderError:
    """The error that a provider reports inside a reply that began as a success."""
    words = [error.get("code"), error.get("type")] if isinstance(error, dict) else []
    status = next((found for found in map(_status_of, words) if found), None)
    cls = error_class(status) if status else ProviderError
    cls = of_text(cls, f"{words} {error_text(error)}")
    text = without(error_text(error) or "no text", secret)
    return cls(
        f"{provider} reported an error for {model}: {text}",
        status=status,
        provider=provider,
        model=model,
        retryable=False if "insufficient_quota" in words else None,
    )


def error_text(document: object) -> str:
    """The provider's own words in any of the forms that are about, or ""."""
    if isinstance(document, str):
        return _cut(document)
    if isinstance(document, list) and document:
        return error_text(document[0])
    if not isinstance(document, dict):
        return ""
    for key in ("error", "message", "detail", "msg"):
        if text := error_text(document.get(key)):
            return text
    return _cut(msgspec.json.encode(document, enc_hook=str).decode()) if document else ""


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by `retry-after-ms`, Azure's `x-ms-retry-after-ms` or `retry-after` (seconds or HTTP
    date), `LONGEST_WAIT` at most; None without any, and where that time is over: then the status says it all.

    A date is read against the reply's own `date`, so that a wrong clock here does not matter.
    """
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if milliseconds := _number(headers.get(name)):
            return min(milliseconds / 1000, LONGEST_WAIT)
    value = headers.get("retry-after", "")
    seconds = _number(value)
    if seconds is None and (when := _timestamp(value)) is not None:
        now = _timestamp(headers.get("date", ""))
        seconds = when - (time.time() if now is None else now)
    return min(seconds, LONGEST_WAIT) if seconds is not None and seconds > 0 else None


def _can_repeat(status: int, document: Any, headers: Mapping[str, str]) -> bool | None:
    """False or True where the reply says so, None where its class decides."""
    said = headers.get("x-should-retry")
    if said in {"true", "false"}:
        return said == "true"
    error = document.get("error") if isinstance(document, dict) else None
    quota = isinstance(error, dict) and "insufficient_quota" in (error.get("code"), error.get("type"))
    return False if quota or status in {501, 505} else None


def _status_of(word: object) -> int | None:
    if isinstance(word, bool):
        return None
    if isinstance(word, int) or (isinstance(word, str) and word.isdecimal()):
        status = int(word)
        return status if 400 <= status < 600 else None
    return _BY_WORD.get(word.lower()) if isinstance(word, str) else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _timestamp(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _plain(body: bytes) -> str:
    return _cut(" ".join(body[: 4 * MAX_TEXT].decode("utf-8", "replace").split()))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def without(text: str, secret: SecretStr | None) -> str:
    """`text` with the secret blotted out, should a provider quote it."""
    return text.replace(secret.get_secret_value(), "***") if secret else text
