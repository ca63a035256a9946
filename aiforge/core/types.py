"""What the whole project agrees on: errors, token usage and provider calls.

AIForgeError
├── ConfigError               a setting, option or name is wrong (also a ValueError)
├── StoreError                a store of conversations cannot be read or written
│   └── ConversationMovedError  somebody else went on with the conversation in the meantime
└── ProviderError             the model's provider could not be reached or said no
    ├── RateLimitError        429: too many requests, or a quota is used up
    ├── APITimeoutError       no connection, first token or next token in time
    ├── AuthenticationError   401, 403: the key is missing, wrong or not allowed
    ├── RequestRefusedError   400, 404, 422: the request itself cannot be served
    │   └── ContextLengthError  it is longer than the model's window
    ├── UnavailableError      5xx, or no connection at all
    ├── StreamCutError        the answer broke off before its end
    └── EmptyAnswerError      the call went well, but there is neither text nor a tool call
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar, Final, Literal

import msgspec
from pydantic import BaseModel, Field

from aiforge.core.texts import Encodable


class AIForgeError(Exception):
    """The root of all errors that aiforge raises itself."""

    code: ClassVar[str] = "internal_error"
    retryable: bool = False


class ConfigError(AIForgeError, ValueError):
    """A setting, option or name is wrong; the message names it and what is right."""

    code = "invalid_config"


class StoreError(AIForgeError):
    """A store of conversations cannot be read or written, or holds what is no conversation."""

    code = "store_error"


class ConversationMovedError(StoreError):
    """Somebody else went on with the conversation since it was read; nothing was written."""

    code = "conversation_moved"
    retryable = True


class ProviderError(AIForgeError):
    """A provider call failed. Carries the provider's own text, never a key.

    `status` is the HTTP status or None, `retry_after` is in seconds or None,
    `retryable` says whether the same request can succeed later.
    """

    code = "provider_error"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        provider: str | None = None,
        model: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.provider = provider
        self.model = model
        if retryable is not None:
            self.retryable = retryable


class RateLimitError(ProviderError):
    """The provider answers 429."""

    code = "rate_limited"
    retryable = True


class APITimeoutError(ProviderError):
    """A time limit passed: connect, first token, between tokens, or the turn's deadline."""

    code = "provider_timeout"
    retryable = True


class AuthenticationError(ProviderError):
    """The provider answers 401 or 403, or no key is set."""

    code = "provider_authentication"


class RequestRefusedError(ProviderError):
    """The provider answers 400, 404, 413 or 422: repeating cannot help."""

    code = "provider_refused"


class ContextLengthError(RequestRefusedError):
    """The request is longer than the model's window; one with a larger window may take it."""

    code = "provider_context_length"


class UnavailableError(ProviderError):
    """The provider answers 5xx or cannot be reached."""

    code = "provider_unavailable"
    retryable = True


class StreamCutError(ProviderError):
    """The stream ended before the provider said it was complete."""

    code = "provider_stream_cut"
    retryable = True


class EmptyAnswerError(ProviderError):
    """The provider answered with nothing, not even an error."""

    code = "provider_empty_answer"
    retryable = True


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one provider call or a sum of several.

    `cached_tokens`, `cache_write_tokens` and `input_audio_tokens` are part of `input_tokens`,
    `reasoning_tokens` and `output_audio_tokens` are part of `output_tokens`.
    `estimated` marks numbers that the provider did not report.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.estimated or other.estimated,
            self.input_audio_tokens + other.input_audio_tokens,
            self.output_audio_tokens + other.output_audio_tokens,
        )


COST_UNIT: Final = Decimal("1e-12")
"""USD that every cost is a multiple of, so that sums are exact."""

Purpose = Literal["answer", "tool_round", "summary"]
Outcome = Literal["intended", "ok", "error", "aborted", "lost"]


class ProviderCall(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a model: the unit of cost, and one row of the ledger.

    `cost` is in USD; None means that no price is known. Times are in milliseconds.
    """

    call_id: str
    purpose: Purpose
    provider: str
    model: str
    outcome: Outcome
    usage: Usage | None = None
    cost: Decimal | None = None
    error_code: str | None = None
    latency_ms: float | None = None
    first_token_ms: float | None = None
    price_list: str | None = None
    """Whose prices `cost` is by: "own", or the list and its version; None without a known price."""
    attempt: int | None = None
    """In the service: which attempt at its turn, or at the slice of its item, made the call, from 1."""
    at: int | None = None
    """In the service: when it was entered in the ledger, by Redis's clock, in Unix milliseconds."""


class FailedItem(BaseModel):
    """One item of `run_batch` that has no answer."""

    index: int
    text: Encodable
    error: Encodable
    error_class: str
    retryable: bool
    cost: float


class BatchResult(BaseModel):
    """What `run_batch` returns: answers in input order, failures named by index.

    `total_cost` is in USD, for display; failed items and retries are included. Calls without a known
    price count as 0 in it; `unpriced_calls` says how many there are, and `priced` is False.
    """

    results: list[Any] = Field(default_factory=list)
    failed: list[FailedItem] = Field(default_factory=list)
    total_cost: float = 0.0
    total_tokens: int = 0
    priced: bool = True
    unpriced_calls: int = 0
