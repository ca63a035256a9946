"""Who wants to know of every provider call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from aiforge.core.types import ProviderCall, Usage


class Recorder(Protocol):
    """Who wants to know of every provider call: a list in the library, the ledger in the service."""

    def next_call_id(self) -> str:
        """A new id; it travels to the provider as a header."""
        ...

    async def intend(self, call: ProviderCall, most: Callable[[], Usage]) -> None:
        """The request is about to be sent; it is not before this returns. Outcome "intended".

        `most` is what the call can take at most. Raises AIForgeError where that is not to be had.
        """
        ...

    def settle(self, call: ProviderCall) -> None:
        """The request is over. Outcome "ok", "error" or "aborted", with usage and cost."""
        ...
