"""Callers: they submit turns over HTTP at a steady rate, and some of them read along."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Final

from aiforge.client import AsyncClient, ClientError
from tests.chaos.evidence import Accepted, Reading
from tests.chaos.plan import Plan

BURSTS: Final = (1, 1, 1, 2, 3)
"""How many turns a caller submits back to back; those behind the first wait in their conversation."""
LONGEST: Final = 8
"""Turns of a conversation: short enough for the whole of it to be in each call's window."""
NEW: Final = 0.5
"""Share of the bursts that begin a conversation."""
PATIENCE_SECONDS: Final = 60.0
"""How long a submission is repeated under its key before it counts as refused."""
AGAIN_SECONDS: Final = 0.2


class Conversation:
    """One caller's conversation; the lock keeps its submissions in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.accepted: list[Accepted] = []
        self.planned = 0
        self.asked = 0
        self.lock = asyncio.Lock()


class Load:
    """Submits until `over` is set and the plan's turns are asked.

    Every turn that the API accepted is in `conversations`. Each has a key, so that a submission without an
    answer, whose API was killed or has no Redis, can be repeated.
    """

    def __init__(self, plan: Plan, client: AsyncClient) -> None:
        self._plan = plan
        self._client = client
        self._random = Random(f"load {plan.seed}")
        self.over = asyncio.Event()
        self.asked = asyncio.Event()
        """Set when nothing more is submitted."""
        self.conversations: list[Conversation] = []
        self.refused: list[str] = []
        self.repeated = 0
        self._planned = 0
        self.readings: list[Reading] = []
        self.seconds = 0.0

    @property
    def accepted(self) -> dict[str, list[Accepted]]:
        return {conversation.name: conversation.accepted for conversation in self.conversations}

    async def run(self) -> None:
        """Returns when all that was submitted is accepted and every reader has its end."""
        began = due = time.monotonic()
        try:
            async with asyncio.TaskGroup() as readers:
                async with asyncio.TaskGroup() as callers:
                    while not self.over.is_set() or self._planned < self._plan.turns:
                        turns = self._random.choice(BURSTS)
                        self._planned += turns
                        read = [self._random.random() < self._plan.readers for _ in range(turns)]
                        callers.create_task(self._say(self._conversation(turns), read, readers))
                        due += self._random.expovariate(self._plan.rate / turns)
                        await asyncio.sleep(max(0.0, due - time.monotonic()))
                    self.seconds = time.monotonic() - began
                self.asked.set()
        finally:
            self.asked.set()

    def _conversation(self, turns: int) -> Conversation:
        old = [known for known in self.conversations[-200:] if known.planned + turns <= LONGEST]
        if old and self._random.random() >= NEW:
            chosen = self._random.choice(old)
        else:
            chosen = Conversation(f"c{len(self.conversations)}")
            self.conversations.append(chosen)
        chosen.planned += turns
        return chosen

    async def _say(self, conversation: Conversation, read: list[bool], readers: asyncio.TaskGroup) -> None:
        async with conversation.lock:
            for along in read:
                question = f"{conversation.name} asks {conversation.asked}"
                conversation.asked += 1
                try:
                    turn_id = await self._submit(conversation.name, question)
                except ClientError as error:
                    self.refused.append(f"{question}: {error}")
                    continue
                conversation.accepted.append(Accepted(turn_id, question))
                if along:
                    reading = Reading(turn_id)
                    self.readings.append(reading)
                    readers.create_task(self._read(reading))

    async def _submit(self, name: str, question: str) -> str:
        """Raises the last ClientError when it is refused for too long."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                turn = await self._client.submit(
                    question, conversation_id=name, idempotency_key=question.replace(" ", "-")
                )
            except ClientError as error:
                if not error.retryable or time.monotonic() > limit:
                    raise
                self.repeated += 1
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return turn.turn_id

    async def _read(self, reading: Reading) -> None:
        """To the end, from where it was when the API was away for longer than its client repeats."""
        limit = time.monotonic() + PATIENCE_SECONDS
        try:
            while (error := await self._read_on(reading)) is not None:
                if not error.retryable or time.monotonic() > limit:
                    reading.broken = str(error)
                    return
                await asyncio.sleep(AGAIN_SECONDS)
        except asyncio.CancelledError:
            reading.broken = "the turn does not end"
            raise

    async def _read_on(self, reading: Reading) -> ClientError | None:
        """Returns why it broke off."""
        after = reading.events[-1][0] if reading.events else 0
        try:
            async for pair in self._client.stream(reading.turn_id, after=after):
                reading.opened = reading.opened or time.time()
                reading.events.append(pair)
        except ClientError as error:
            return error
        return None
