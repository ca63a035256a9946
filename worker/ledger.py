"""Tells the ledger of a turn's provider calls: each intended before its request, settled after it."""

from __future__ import annotations

from typing import Final

import msgspec

from aiforge.core.types import ProviderCall
from worker import metrics
from worker.contract.store import TurnStore

FIRST_CALL: Final = ProviderCall(call_id="", purpose="answer", provider="", model="", outcome="intended")
"""Replaced when the call is settled."""


class Recorder:
    """The engine's `Recorder` for one turn or item; call number 1 was entered by the claim."""

    def __init__(self, store: TurnStore, owner: str, prefix: str) -> None:
        self._store = store
        self._owner = owner
        self._prefix = prefix
        self._number = 0
        self._settled: list[ProviderCall] = []
        self.made: list[ProviderCall] = []
        """Every call that ended, in order."""

    def first_call(self) -> ProviderCall:
        """The row that the claim enters, before model and provider are known."""
        return msgspec.structs.replace(FIRST_CALL, call_id=f"{self._prefix}.1")

    def next_call_id(self) -> str:
        self._number += 1
        return f"{self._prefix}.{self._number}"

    async def intend(self, call: ProviderCall) -> None:
        if self._number > 1:
            ended = list(self._settled)
            await self._store.ledger(self._owner, settled=ended, intended=[call])
            del self._settled[: len(ended)]

    def settle(self, call: ProviderCall) -> None:
        self._settled.append(call)
        self.made.append(call)
        metrics.count_call(call)

    def take(self) -> list[ProviderCall]:
        """Calls that ended and are not in the ledger yet; the caller enters them."""
        settled, self._settled = self._settled, []
        return settled

    def unused(self) -> list[ProviderCall]:
        """The call that the claim entered, when the attempt ended before it was made."""
        if self._number:
            return []
        return [msgspec.structs.replace(self.first_call(), outcome="lost")]
