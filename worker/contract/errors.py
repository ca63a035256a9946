"""Errors of the contract.

ContractError
├── NotFound             the tenant has no such turn, conversation or batch
├── Gone                 it was erased
├── InvalidInput         a field is wrong; `param` names it
├── LimitExceeded        a budget has no room
├── Conflict             the state does not allow it: `code` says why
│   └── KeyReused        an idempotency key stands for something else already
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


class Gone(ContractError):
    """It was erased, and no repetition brings it back."""

    code = "gone"


class InvalidInput(ContractError):
    """A field is wrong; the message says what is right."""

    code = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Conflict(ContractError):
    """The state of what is there does not allow it; `code` says why."""

    code = "conflict"

    def __init__(self, message: str, *, code: str = "conflict") -> None:
        super().__init__(message)
        self.code = code  # type: ignore[misc]  # one error, some stable codes


class KeyReused(Conflict):
    """An idempotency key stands for something else already."""

    def __init__(self) -> None:
        super().__init__("the idempotency key was used with another body", code="idempotency_mismatch")


class LimitExceeded(ContractError):
    """A budget has no room; `retry_after` is in seconds, None where waiting does not help. One of `money` is
    no matter for a program that tries again."""

    code = "budget_exceeded"

    def __init__(self, message: str, *, retry_after: float | None, money: bool = False) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.money = money


class Unavailable(ContractError):
    """Redis cannot be reached or cannot store more; nothing was accepted."""

    code = "store_unavailable"
    retryable = True
