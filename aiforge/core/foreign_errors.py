"""The errors of LangChain's packages in our tree.

Their packages are optional and each has its own error classes, so an error is read by what all of
them carry: a status, a class of LangChain's own tree, or at least a telling name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from langchain_core import exceptions
from pydantic import SecretStr

from aiforge.core.openai_chat.failures import (
    error_class,
    error_text,
    from_stream,
    of_text,
    retry_after,
    without,
)
from aiforge.core.types import (
    APITimeoutError,
    AuthenticationError,
    ContextLengthError,
    ProviderError,
    RateLimitError,
    RequestRefusedError,
    UnavailableError,
)

_BY_CLASS: Final[tuple[tuple[type[Exception], type[ProviderError]], ...]] = (
    (exceptions.ModelAuthenticationError, AuthenticationError),
    (exceptions.ModelPermissionDeniedError, AuthenticationError),
    (exceptions.ModelInvalidRequestError, RequestRefusedError),
    (exceptions.ModelNotFoundError, RequestRefusedError),
    (exceptions.ContextOverflowError, ContextLengthError),
    (exceptions.ModelRateLimitError, RateLimitError),
    (exceptions.ModelTimeoutError, APITimeoutError),
    (exceptions.ModelConnectionError, UnavailableError),
    (exceptions.ModelAPIError, UnavailableError),
    (TimeoutError, APITimeoutError),
    (ConnectionError, UnavailableError),
)
_BY_NAME: Final = (
    ("Timeout", APITimeoutError),
    ("Connect", UnavailableError),
    ("Network", UnavailableError),
    ("Protocol", UnavailableError),
    ("ReadError", UnavailableError),
    ("Credentials", AuthenticationError),
)
"""Parts of class names that httpx, botocore and google's packages use."""


def translated(
    error: Exception, *, provider: str, model: str, secrets: Sequence[SecretStr] = ()
) -> ProviderError:
    """A foreign error in our tree; its text, but neither a secret nor the error itself, goes along."""
    response = getattr(error, "response", None)
    status = getattr(error, "status_code", None) or getattr(response, "status_code", None)
    body = getattr(error, "body", None)
    text = error_text(body) or error_text(str(error)) or "no text"
    for secret in secrets:
        text = without(text, secret)
    if not (isinstance(status, int) and 400 <= status < 600):
        if isinstance(body, dict) and body:
            return from_stream(body.get("error") or body, provider=provider, model=model)
        return _class_of(error)(
            f"{provider}, {model}: {text} ({type(error).__name__})", provider=provider, model=model
        )
    headers = getattr(response, "headers", None)
    return of_text(error_class(status), text)(
        f"{provider} answered {status} for {model}: {text}",
        status=status,
        retry_after=retry_after(headers) if isinstance(headers, Mapping) else None,
        provider=provider,
        model=model,
    )


def _class_of(error: Exception) -> type[ProviderError]:
    for foreign, ours in _BY_CLASS:
        if isinstance(error, foreign):
            return ours
    names = [cls.__name__ for cls in type(error).__mro__]
    for part, ours in _BY_NAME:
        if any(part in name for name in names):
            return ours
    # SDKs notice a missing key only when they build the request, and raise a TypeError or ValueError.
    about_keys = any(word in str(error).lower() for word in ("authentication", "api key", "api_key"))
    return AuthenticationError if about_keys else ProviderError
