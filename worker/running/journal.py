"""What a turn's tools have done, kept in Redis before anything builds on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worker.calls.ledger import Recorder
from worker.contract.schemas import Paused
from worker.contract.store import Claim, TurnStore
from worker.patience import patiently


class Journal:
    """The engine's `Journal` for one attempt: the next one makes no call again that has a result here."""

    def __init__(self, store: TurnStore, claim: Claim, recorder: Recorder, lost: Callable[[], None]) -> None:
        """`lost` is called when the turn was given to another."""
        self._store = store
        self._claim = claim
        self._recorder = recorder
        self._lost = lost
        self._messages: list[dict[str, Any]] = []
        self._begun = list(claim.paused.begun) if claim.paused else []

    async def begin(self, messages: list[dict[str, Any]], calls: list[str]) -> None:
        self._messages = list(messages)
        self._begun += calls
        await self._keep()

    async def end(self, message: dict[str, Any]) -> None:
        self._messages.append(message)
        await self._keep()

    async def _keep(self) -> None:
        paused = Paused(messages=self._messages, calls=self._recorder.made, begun=self._begun)
        if not await patiently(lambda: self._store.keep(self._claim, paused)):
            self._lost()
