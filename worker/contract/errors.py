"""Errors of the contract.

ContractError
├── NotFound             the tenant has no such turn, conversation or batch
├── InvalidInput         a field is wrong; `param` names it
├── Conflict             the id exists already, or a key was used for another body
└── Unavailable          Redis cannot be reached or cannot store more
"""

from __future__ import annotations

from typing import ClassVar


class ContractError(Exception):
    """The root; `code` is stable and stands in HTTP errors."""

    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False


class NotFound(ContractError):
    """The tenant has no such turn, conversation or batch."""

    code = "not_found"


class InvalidInput(ContractError):
    """A field is wrong; the message says what is right."""

    code = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Conflict(ContractError):
    """The id exists already, or the idempotency key was used with another body."""

    code = "conflict"

    def __init__(self, message: str, *, code: str = "conflict") -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # one error, two stable codes


class Unavailable(ContractError):
    """Redis cannot be reached or cannot store more; nothing was accepted."""

    code = "store_unavailable"
    retryable = True
