"""A turn that runs while somebody reads its events."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from aiforge.core.events import Event, Reset, Token
from aiforge.modules.chat.begun import Answer, Ask, Begun
from aiforge.modules.chat.conversation import Conversation
from aiforge.modules.chat.order import TurnOrder
from aiforge.modules.chat.schemas import ChatResponse
from aiforge.modules.chat.turns import Finished, Turns


class WatchedTurn:
    """Starts the turn when its time in `order` has come, and ends it when the reader leaves.

    What a reader has seen who leaves early is kept. This is no generator, because one generator
    inside another cannot be left to the event loop: at its end the loop closes both at the same time,
    which Python refuses.
    """

    def __init__(
        self,
        order: TurnOrder,
        turns: Turns,
        asked: Ask | Answer,
        conversation: Conversation,
        *,
        resets: bool,
    ) -> None:
        """`resets` says that the reader can forget what it has read."""
        self._resets = resets
        self._order = order
        self._turns = turns
        self._asked = asked
        self._conversation = conversation
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._seen: list[str] = []
        self._begun: Begun | None = None
        self._ends = False
        self._turn: asyncio.Task[Finished]

    async def __aenter__(self) -> Self:
        await self._order.__aenter__()
        self._turn = asyncio.create_task(self._run())
        self._turn.add_done_callback(lambda _: self._events.put_nowait(None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._turn.cancel()
            await asyncio.wait([self._turn])
            left = isinstance(error, GeneratorExit | asyncio.CancelledError) and not self._ends
            failed = not self._turn.cancelled() and self._turn.exception() is not None
            if left and not failed and self._begun is not None:
                with self._order.inside():
                    await self._turns.stop(self._begun, "".join(self._seen))
        finally:
            await self._order.__aexit__(kind, error, trace)

    async def next(self) -> Event | None:
        """The next event, None after the last."""
        event = await self._events.get()
        if isinstance(event, Token):
            self._seen.append(event.text)
        elif isinstance(event, Reset):
            self._seen.clear()
        return event

    async def commit(self) -> ChatResponse:
        """Make the turn part of its conversation, once `next` has given None; raises what it raised."""
        self._ends = True
        with self._order.inside():
            return await self._turns.commit(self._turn.result())

    async def _run(self) -> Finished:
        with self._order.inside():
            self._begun = await self._turns.begin(self._asked, self._conversation)
            return await self._turns.run(
                self._begun, self._events.put_nowait, stream=True, resets=self._resets
            )
