"""Tells the ledger of a turn's provider calls: each intended before its request, settled after it."""

from __future__ import annotations

import msgspec

from aiforge.core.types import ProviderCall
from worker import metrics
from worker.contract.store import TurnStore


class Recorder:
    """The engine's `Recorder` for one turn or item; call number 1 was entered by the claim."""

    def __init__(self, store: TurnStore, owner: str, prefix: str, first: ProviderCall) -> None:
        """Call ids are `<prefix>.<number>`; `first` is what the claim enters but for its id."""
        self._store = store
        self._owner = owner
        self._prefix = prefix
        self._number = 0
        self.first = msgspec.structs.replace(first, call_id=f"{prefix}.1")
        self._settled: list[ProviderCall] = []
        self.made: list[ProviderCall] = []
        """Every call of the turn that ended, in order, those before a pause included."""

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

    def lose(self, calls: list[ProviderCall]) -> None:
        """Take over what is left of an attempt that died: entered in the ledger, and never paid here."""
        self._settled += calls

    def take(self) -> list[ProviderCall]:
        """Calls that ended and are not in the ledger yet; the caller enters them."""
        settled, self._settled = self._settled, []
        return settled
