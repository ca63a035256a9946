"""The past of an agent's conversation: its versions, going back, branching off, folding up.

All of it needs a store, but for `history`. Each method has an awaitable twin with an `a` before its
name. Versions and turns that there are not raise ValueError.
"""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import Any, Self

from aiforge.core import bridge
from aiforge.core.cost import CostTracker
from aiforge.core.events import Event
from aiforge.core.types import ConfigError
from aiforge.modules.chat.conversation import Conversation, snapshot
from aiforge.modules.chat.entries import CheckoutEntry, encode, unpacked
from aiforge.modules.chat.log import Diff, Log, VersionInfo
from aiforge.modules.chat.order import TurnOrder
from aiforge.modules.chat.turns import Turns


class Versions:
    """The part of `ChatAgent` that looks back."""

    _order: TurnOrder
    _conversation: Conversation
    _tracker: CostTracker
    _turns: Turns

    @property
    def version(self) -> int:
        """The version of the conversation that this agent knows; 0 while nothing is stored."""
        return self._conversation.version

    def history(self) -> list[dict[str, Any]]:
        """The whole conversation, in OpenAI's form and without system prompt.

        The partial answer of a stream that was left early has `"stopped": True` beside its content.
        Without a store, what memory still holds of it.
        """
        return bridge.run(self.ahistory())

    async def ahistory(self) -> list[dict[str, Any]]:
        conversation = self._conversation
        if conversation.store is None:
            return copy.deepcopy(conversation.memory.messages)
        log = await conversation.log()
        return log.messages(log.last)

    def versions(self) -> list[VersionInfo]:
        """All versions that can be checked out, with what made them; the empty one is not listed."""
        return bridge.run(self.aversions())

    async def aversions(self) -> list[VersionInfo]:
        return (await self._log()).versions()

    def checkout(self, version: int) -> int:
        """Make the conversation what it was at `version`, and return the number of the new version.

        Nothing is lost: what came after can be checked out again. Refuses versions below the
        baseline of a compaction.
        """
        return bridge.run(self.acheckout(version))

    async def acheckout(self, version: int) -> int:
        async with self._order:
            conversation = self._stored()
            (await conversation.restore()).path(version)
            await conversation.append(CheckoutEntry(at=time.time(), to=version))
            await conversation.restore()
            return conversation.version

    def branch(self, version: int | None = None) -> Self:
        """An agent like this one whose conversation, a new one, begins as this one's is at `version`.

        None is the latest version. Neither of the two sees what the other does from here on.
        """
        return bridge.run(self.abranch(version))

    async def abranch(self, version: int | None = None) -> Self:
        log = await self._log()
        twin = copy.copy(self)
        twin._order, twin._tracker = TurnOrder(), CostTracker()
        twin._turns = replace(self._turns, tracker=twin._tracker, last_response=None, failed_summaries=0)
        twin._conversation = self._conversation.fresh()
        await twin._conversation.append(snapshot(log, log.last if version is None else version, branch=True))
        await twin._conversation.restore()
        return twin

    def diff(self, v1: int, v2: int) -> Diff:
        """The messages that version `v2` lacks and has, compared with `v1`."""
        return bridge.run(self.adiff(v1, v2))

    async def adiff(self, v1: int, v2: int) -> Diff:
        return (await self._log()).diff(v1, v2)

    def replay(self, turn_id: str) -> list[Event]:
        """All events of a turn as they happened; `turn_id` is the response's `trace_id`."""
        return bridge.run(self.areplay(turn_id))

    async def areplay(self, turn_id: str) -> list[Event]:
        return list(unpacked((await self._log()).turn(turn_id).events))

    def compact(self, version: int | None = None) -> None:
        """Fold all versions up to this one, None is the latest, into one: their events and steps go.

        The conversation itself stays whole. The version becomes the baseline of `checkout`.
        """
        bridge.run(self.acompact(version))

    async def acompact(self, version: int | None = None) -> None:
        conversation = self._stored()
        log = await conversation.log()
        upto = log.last if version is None else version
        log.check_compaction(upto)
        if upto > log.baseline:
            assert conversation.store is not None
            await conversation.store.compact(conversation.id, upto, encode(snapshot(log, upto)))

    def _stored(self) -> Conversation:
        if self._conversation.store is None:
            raise ConfigError("versions of a conversation need a store: ChatAgent(store=…)")
        return self._conversation

    async def _log(self) -> Log:
        return await self._stored().log()
