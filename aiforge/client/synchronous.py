"""The client for plain code."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
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


class Client:
    """Speaks to the service at `base_url`; every method raises ClientError. Close it, or use `with`."""

    def __init__(self, base_url: str, *, token: str | None = None, retries: int = 2) -> None:
        self.base_url = base_url
        self._retries = retries
        self._http = httpx.Client(**calls.http_options(base_url, token))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def submit(
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
        return self._send(
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

    def turn(self, turn_id: str) -> Turn:
        return self._send(calls.turn(turn_id))

    def find_turn(self, idempotency_key: str, *, conversation_id: str | None = None) -> Turn:
        """The turn that was submitted under a key, to that conversation if one was named."""
        return self._send(calls.find_turn(idempotency_key, conversation_id))

    def wait(self, turn_id: str, seconds: float) -> Turn:
        """The finished turn, one that asks a human, or the turn as it is when the time is over."""
        for part in waits(seconds):
            turn = self._send(calls.turn(turn_id, part))
            if turn.finished or turn.question is not None:
                break
        return turn

    def stream(self, turn_id: str, *, after: int = 0) -> Iterator[tuple[int, Event]]:
        """Events with their numbers, from `after` on to the end; a broken connection is resumed.

        A question to a human that nobody has answered ends it, too. After `resume`, go on from that
        event's number.
        """
        reading = Reading(turn_id, after, self.base_url)
        while not reading.over:
            try:
                with self._http.stream(
                    "GET", reading.path, headers=reading.headers(), timeout=TIMEOUT
                ) as response:
                    if response.is_success:
                        for chunk in response.iter_bytes():
                            yield from reading.feed(chunk)
                    else:
                        response.read()
                        reading.refused(response)
                reading.closed()
            except httpx.HTTPError as error:
                reading.broke(error)
            if not reading.over:
                time.sleep(reading.pause())

    def cancel(self, turn_id: str, *, if_state: State | None = None) -> Turn:
        """Cancel a turn; one that runs ends shortly. ConflictError unless it is in that state."""
        return self._send(calls.cancel(turn_id, if_state))

    def resume(self, turn_id: str, question_id: str, answer: str) -> Turn:
        """Answer what a turn asks; `approved` or `yes` lets a tool call run.

        The same answer again changes nothing, another one is a ConflictError.
        """
        return self._send(calls.resume(turn_id, question_id, answer))

    def dead_letters(self, *, limit: int = 100) -> list[Turn]:
        """Turns that were given up because every worker that ran them died, the latest first."""
        return (self._send(calls.dead_letters(limit))).data

    def requeue_dead(self, turn_id: str) -> Turn:
        """Post a dead letter again; the new turn."""
        return self._send(calls.requeue_dead(turn_id))

    def drop_dead(self, turn_id: str) -> None:
        """Take a turn from the dead letters; it stays failed."""
        self._send(calls.drop_dead(turn_id))

    def create_conversation(
        self, conversation_id: str | None = None, **options: Unpack[ConversationOptions]
    ) -> Conversation:
        return self._send(calls.create_conversation(conversation_id, options))

    def conversation(self, conversation_id: str) -> Conversation:
        return self._send(calls.conversation(conversation_id))

    def conversations(self) -> Iterator[Conversation]:
        """All conversations, by their latest turn, the newest first."""
        before: str | None = None
        while True:
            page = self._send(calls.conversations(before))
            yield from page.data
            if page.next is None:
                break
            before = page.next

    def queue(self, conversation_id: str) -> Queue:
        """The conversation's running turn and those that wait, in order."""
        return self._send(calls.queue(conversation_id))

    def reorder(self, conversation_id: str, expected: Sequence[str], turns: Sequence[str]) -> Queue:
        """Put waiting turns into another order; ConflictError unless they wait as `expected`."""
        return self._send(calls.reorder(conversation_id, expected, turns))

    def erase(self, conversation_id: str) -> Erasure:
        """Erase a conversation and all its turns."""
        return self._send(calls.erase(conversation_id))

    def export(self, conversation_id: str) -> Export:
        """The whole conversation as one document."""
        return self._send(calls.export(conversation_id))

    def import_conversation(self, document: Export, *, conversation_id: str | None = None) -> Conversation:
        """Make an exported conversation anew, under another id if one is given."""
        return self._send(calls.import_conversation(document, conversation_id))

    def usage(
        self, *, group_by: Sequence[Group] = (), first: date | None = None, last: date | None = None
    ) -> UsageReport:
        """Provider calls, tokens and cost of some days (UTC, both included), by model if by nothing else."""
        return self._send(calls.usage(group_by, first, last))

    def history(self, conversation_id: str, *, after: int = 0) -> Iterator[Message]:
        """The stored messages from number `after` on, oldest first."""
        more = True
        while more:
            page = self._send(calls.messages(conversation_id, after, calls.PAGE_MESSAGES))
            yield from page.data
            after, more = after + len(page.data), page.has_more

    def submit_batch(self, items: Iterable[str | Item], **options: Unpack[Options]) -> Batch:
        return self._send(calls.submit_batch(items, options))

    def batch(self, batch_id: str) -> Batch:
        return self._send(calls.batch(batch_id))

    def results(self, batch_id: str, *, after: int = 0) -> Iterator[Row]:
        """Rows in input order from index `after` on, up to the first unfinished one while the batch runs."""
        while page := self._send(calls.results(batch_id, after, calls.PAGE_ROWS)):
            yield from page
            after = page[-1].index + 1

    def cancel_batch(self, batch_id: str) -> Batch:
        return self._send(calls.cancel_batch(batch_id))

    def ready(self) -> None:
        """Raises ServerError saying why the service cannot serve, or UnreachableError."""
        self._send(calls.ready())

    def _send(self, call: Call[T]) -> T:
        attempts = Attempts(call, self._retries)
        while True:
            try:
                response = self._http.send(call.request(self._http))
            except httpx.HTTPError as error:
                pause = attempts.pause(error)
                if pause is None:
                    raise from_transport(error, self.base_url) from None
            else:
                pause = attempts.pause(response)
                if pause is None:
                    return call.answer(response)
            time.sleep(pause)
