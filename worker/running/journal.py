"""What a turn's tools have done, kept in Redis before anything builds on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from aiforge.modules.chat.memory import settled
from worker.calls.ledger import Recorder
from worker.contract.claims import Claim
from worker.contract.schemas import Paused, StoredMessage
from worker.contract.store import TurnStore
from worker.patience import patiently
from worker.running.specs import stored


class Journal:
    """The engine's `Journal` for one attempt: the next one makes no call again that has a result here."""

    def __init__(self, store: TurnStore, claim: Claim, recorder: Recorder, lost: Callable[[], None]) -> None:
        """`lost` is called when the turn was given to another."""
        self._store = store
        self._claim = claim
        self._recorder = recorder
        self._lost = lost
        self.so_far = claim.paused
        """What the turn has by now; None before its first tool."""

    async def begin(self, messages: list[dict[str, Any]], calls: list[str]) -> None:
        begun = self.so_far.begun if self.so_far else []
        await self._keep(messages, [*begun, *calls])

    async def end(self, message: dict[str, Any]) -> None:
        assert self.so_far is not None
        await self._keep([*self.so_far.messages, message], self.so_far.begun)

    async def _keep(self, messages: list[dict[str, Any]], begun: list[str]) -> None:
        paused = Paused(messages=list(messages), calls=self._recorder.made, begun=begun)
        self.so_far = paused
        left = left_of(paused, self._claim.place.turn_id)
        if not await patiently(lambda: self._store.keep(self._claim, paused, left)):
            self._lost()


def left_of(so_far: Paused, turn_id: str, partial: str = "") -> list[StoredMessage]:
    """What stays in memory of a turn that is stopped: what its tools have done, of each other call whether it
    may have been made, and what was seen of its answer. The last answer is marked as stopped.

    Where there is nothing but the question nothing stays.
    """
    messages = stored(settled(so_far.messages, started=so_far.begun), turn_id)
    if partial:
        return [*messages, StoredMessage(role="assistant", content=partial, turn_id=turn_id, stopped=True)]
    last = max((n for n, message in enumerate(messages) if message.role == "assistant"), default=None)
    if last is None:
        return []
    messages[last] = msgspec.structs.replace(messages[last], stopped=True)
    return messages
