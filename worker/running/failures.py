"""How errors stand in the records of turns and items."""

from __future__ import annotations

from typing import Final

from aiforge.core.types import AIForgeError
from worker.contract.schemas import TurnFailure

OWN_ERROR: Final = TurnFailure("internal_error", "the worker met an error of its own", retryable=True)
"""Of what nobody outside the worker can be blamed for."""


def failure_of(error: AIForgeError) -> TurnFailure:
    """An error of the provider, of a tool or of what was asked."""
    return TurnFailure(error.code, str(error), error.retryable)
