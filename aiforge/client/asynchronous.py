"""The client for asyncio; the same methods as `Client`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import date
from typing import Literal, Self, TypeVar, Unpack

import httpx

from aiforge.client import calls
from aiforge.client.calls import Call
from aiforge.client.errors import from_transport
from aiforge.client.options import ConversationOptions, Group, Options, State, TurnOptions
from aiforge.client.results import (
    Batch,
    Content,
    Conversation,
    Erasure,
    Export,
    Item,
    Message,
    Queue,
    Row,
    Turn,
    UsageReport,
)
from aiforge.client.retry import Attempts, waits
from aiforge.client.stream import TIMEOUT, Reading
from aiforge.core.events import Event

T = TypeVar("T")


class AsyncClient:
    """Speaks to the service at `base_url`; every method raises ClientError. Close it, or use `async with`."""

    def __init__(self, base_url: str, *, token: str | None = None, retries: int = 2) -> None:
        self.base_url = base_url
        self._retries = retries
        self._http = httpx.AsyncClient(**calls.http_options(base_url, token))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def submit(
        self,
        message: Content,
        *,
        conversation_id: str | None = None,
        if_not_exists: str | None = None,
        idempotency_key: str | None = None,
        wait: float | None = None,
        on_disconnect: Literal["continue", "cancel"] | None = None,
        **options: Unpack[TurnOptions],
    ) -> Turn:
        """Store a turn and return it; with `wait`, finished if it is so within that many seconds.

        With `on_disconnect="cancel"` a turn that is waited for ends when this connection does.
        """
        return await self._send(
            calls.submit(
                message,
                conversation_id=conversation_id,
                if_not_exists=if_not_exists,
                idempotency_key=idempotency_key,
                wait=wait,
                on_disconnect=on_disconnect,
                fields=options,
            )
        )

    async def turn(self, turn_id: str) -> Turn:
        return await self._send(calls.turn(turn_id))

    async def find_turn(self, idempotency_key: str, *, conversation_id: str | None = None) -> Turn:
        """The turn that was submitted under a key, to that conversation if one was named."""
        return await self._send(calls.find_turn(idempotency_key, conversation_id))

    async def wait(self, turn_id: str, seconds: float) -> Turn:
        """The finished turn, one that asks a human, or the turn as it is when the time is over."""
        for part in waits(seconds):
            turn = await self._send(calls.turn(turn_id, part))
            if turn.finished or turn.question is not None:
                break
        return turn

    async def stream(self, turn_id: str, *, after: int = 0) -> AsyncIterator[tuple[int, Event]]:
        """Events with their numbers, from `after` on to the end; a broken connection is resumed.

        A question to a human that nobody has answered ends it, too. After `resume`, go on from that
        event's number.
        """
        reading = Reading(turn_id, after, self.base_url)
        while not reading.over:
            try:
                async with self._http.stream(
                    "GET", reading.path, headers=reading.headers(), timeout=TIMEOUT
                ) as response:
                    if response.is_success:
                        async for chunk in response.aiter_bytes():
                            for pair in reading.feed(chunk):
                                yield pair
                    else:
                        await response.aread()
                        reading.refused(response)
                reading.closed()
            except httpx.HTTPError as error:
                reading.broke(error)
            if not reading.over:
                await asyncio.sleep(reading.pause())

    async def cancel(self, turn_id: str, *, if_state: State | None = None) -> Turn:
        """Cancel a turn; one that runs ends shortly. ConflictError unless it is in that state."""
        return await self._send(calls.cancel(turn_id, if_state))

    async def resume(self, turn_id: str, question_id: str, answer: str) -> Turn:
        """Answer what a turn asks; `approved` or `yes` lets a tool call run.

        The same answer again changes nothing, another one is a ConflictError.
        """
        return await self._send(calls.resume(turn_id, question_id, answer))

    async def dead_letters(self, *, limit: int = 100) -> list[Turn]:
        """Turns that were given up because every worker that ran them died, the latest first."""
        return (await self._send(calls.dead_letters(limit))).data

    async def requeue_dead(self, turn_id: str) -> Turn:
        """Post a dead letter again; the new turn."""
        return await self._send(calls.requeue_dead(turn_id))

    async def drop_dead(self, turn_id: str) -> None:
        """Take a turn from the dead letters; it stays failed."""
        await self._send(calls.drop_dead(turn_id))

    async def create_conversation(
        self, conversation_id: str | None = None, **options: Unpack[ConversationOptions]
    ) -> Conversation:
        return await self._send(calls.create_conversation(conversation_id, options))

    async def conversation(self, conversation_id: str) -> Conversation:
        return await self._send(calls.conversation(conversation_id))

    async def conversations(self) -> AsyncIterator[Conversation]:
        """All conversations, by their latest turn, the newest first."""
        before: str | None = None
        while True:
            page = await self._send(calls.conversations(before))
            for found in page.data:
                yield found
            if page.next is None:
                break
            before = page.next

    async def queue(self, conversation_id: str) -> Queue:
        """The conversation's running turn and those that wait, in order."""
        return await self._send(calls.queue(conversation_id))

    async def reorder(self, conversation_id: str, expected: Sequence[str], turns: Sequence[str]) -> Queue:
        """Put waiting turns into another order; ConflictError unless they wait as `expected`."""
        return await self._send(calls.reorder(conversation_id, expected, turns))

    async def erase(self, conversation_id: str) -> Erasure:
        """Erase a conversation and all its turns."""
        return await self._send(calls.erase(conversation_id))

    async def export(self, conversation_id: str) -> Export:
        """The whole conversation as one document."""
        return await self._send(calls.export(conversation_id))

    async def import_conversation(
        self, document: Export, *, conversation_id: str | None = None
    ) -> Conversation:
        """Make an exported conversation anew, under another id if one is given."""
        return await self._send(calls.import_conversation(document, conversation_id))

    async def usage(
        self, *, group_by: Sequence[Group] = (), first: date | None = None, last: date | None = None
    ) -> UsageReport:
        """Provider calls, tokens and cost of some days (UTC, both included), by model if by nothing else."""
        return await self._send(calls.usage(group_by, first, last))

    async def history(self, conversation_id: str, *, after: int = 0) -> AsyncIterator[Message]:
        """The stored messages from number `after` on, oldest first."""
        more = True
        while more:
            page = await self._send(calls.messages(conversation_id, after, calls.PAGE_MESSAGES))
            for message in page.data:
                yield message
            after, more = after + len(page.data), page.has_more

    async def submit_batch(self, items: Iterable[str | Item], **options: Unpack[Options]) -> Batch:
        return await self._send(calls.submit_batch(items, options))

    async def batch(self, batch_id: str) -> Batch:
        return await self._send(calls.batch(batch_id))

    async def results(self, batch_id: str, *, after: int = 0) -> AsyncIterator[Row]:
        """Rows in input order from index `after` on, up to the first unfinished one while the batch runs."""
        while page := await self._send(calls.results(batch_id, after, calls.PAGE_ROWS)):
            for row in page:
                yield row
            after = page[-1].index + 1

    async def cancel_batch(self, batch_id: str) -> Batch:
        return await self._send(calls.cancel_batch(batch_id))

    async def ready(self) -> None:
        """Raises ServerError saying why the service cannot serve, or UnreachableError."""
        await self._send(calls.ready())

    async def _send(self, call: Call[T]) -> T:
        attempts = Attempts(call, self._retries)
        while True:
            try:
                response = await self._http.send(call.request(self._http))
            except httpx.HTTPError as error:
                pause = attempts.pause(error)
                if pause is None:
                    raise from_transport(error, self.base_url) from None
            else:
                pause = attempts.pause(response)
                if pause is None:
                    return call.answer(response)
            await asyncio.sleep(pause)
