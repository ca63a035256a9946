"""Who lets provider calls begin, and hears how they end.

The library has nobody there. A service puts someone there who knows how the model fares with all its
processes, what its provider allows, and who else is waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aiforge.core.types import ProviderError, Usage


class Place(Protocol):
    """A call that may be made; it is given back when the call is over."""

    def leave(self, *, ok: bool, error: ProviderError | None = None, usage: Usage | None = None) -> bool:
        """The call was answered, failed, or (neither) was stopped; `usage` is what it really took.

        True says that the next call is held back at the gate for as long as this error asks for, so that
        nobody else need wait.
        """
        ...


class Gate(Protocol):
    """Asked before each provider call, before anybody is told of it."""

    async def enter(self, provider: str, model: str, *, tokens: Callable[[], int], time_left: float) -> Place:
        """Wait for a place; a cancellation ends that at once.

        `tokens` estimates what the call will take, `time_left` is how many seconds the caller has. Raises
        ProviderError when it is known that there will be no place until then.
        """
        ...
