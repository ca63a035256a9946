"""Tells the ledger of a turn's provider calls: each intended before its request, settled after it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from aiforge.core.types import ProviderCall, Usage
from worker import metrics
from worker.calls.purse import Purse, Purses
from worker.contract.claims import Claim
from worker.contract.errors import Unavailable
from worker.contract.store import TurnStore
from worker.patience import patiently


class Recorder:
    """The engine's `Recorder` for one turn or item; call number 1 was entered by the claim."""

    def __init__(
        self,
        store: TurnStore,
        owner: str,
        prefix: str,
        first: ProviderCall,
        *,
        tenant: str,
        purse: Purse | None = None,
        purses: Purses | None = None,
    ) -> None:
        """Call ids are `<prefix>.<number>`; `first` is what the claim enters but for its id. Without a
        `purse` no budget holds; that of a turn is found among the `purses` when it is claimed."""
        self._purse = purse
        self._purses = purses
        self._store = store
        self._owner = owner
        self._tenant = tenant
        self._prefix = prefix
        self._number = 0
        self.attempt: int | None = None
        """Stands in every row; known once the claim was granted."""
        self.first = msgspec.structs.replace(first, call_id=f"{prefix}.1")
        self._settled: list[ProviderCall] = []
        self.made: list[ProviderCall] = []
        """Every call of the turn that ended, in order, those before a pause included."""

    def begin(self, claim: Claim) -> None:
        """The claim of a turn was granted."""
        self.attempt = claim.attempt
        if self._purses is not None:
            place = claim.place
            self._purse = self._purses.of_turn(
                place.tenant, place.conversation_id, batch_id=claim.batch_id, api_key=claim.api_key
            )
        if self._purse is not None:
            self._purse.lives = claim.lives

    def next_call_id(self) -> str:
        self._number += 1
        return f"{self._prefix}.{self._number}"

    async def intend(self, call: ProviderCall, most: Callable[[], Usage]) -> None:
        if self._purse is not None:
            await self._purse.reserve(call, most)
        if self._number > 1:
            await self._enter(call)

    async def _enter(self, call: ProviderCall) -> None:
        """Write the call's row, and those of the calls before it; without it the call is not made."""
        ended, begun = list(self._settled), msgspec.structs.replace(call, attempt=self.attempt)
        try:
            await patiently(
                lambda: self._store.ledger(self._owner, self._tenant, settled=ended, intended=[begun])
            )
        except Unavailable:
            if self._purse is not None:
                self._purse.settle(msgspec.structs.replace(call, outcome="aborted"))
            raise
        del self._settled[: len(ended)]

    def settle(self, call: ProviderCall) -> None:
        call = msgspec.structs.replace(call, attempt=self.attempt)
        self._settled.append(call)
        self.made.append(call)
        metrics.count_call(call)
        if self._purse is not None:
            self._purse.settle(call)

    def lose(self, calls: list[ProviderCall]) -> None:
        """Take over what is left of an attempt that died: entered in the ledger, and never paid here."""
        self._settled += calls

    def take(self) -> list[ProviderCall]:
        """Calls that ended and are not in the ledger yet; the caller enters them."""
        settled, self._settled = self._settled, []
        return settled
