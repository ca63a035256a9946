"""The client for plain code."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Self, TypeVar, Unpack

import httpx

from aiforge.client import calls
from aiforge.client.calls import Call
from aiforge.client.errors import from_transport
from aiforge.client.options import ConversationOptions, Options
from aiforge.client.results import Batch, Content, Conversation, Item, Message, Row, Turn
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
        **options: Unpack[Options],
    ) -> Turn:
        """Store a turn and return it; with `wait`, finished if it is so within that many seconds."""
        return self._send(
            calls.submit(
                message,
                conversation_id=conversation_id,
                if_not_exists=if_not_exists,
                idempotency_key=idempotency_key,
                wait=wait,
                fields=options,
            )
        )

    def turn(self, turn_id: str) -> Turn:
        return self._send(calls.turn(turn_id))

    def wait(self, turn_id: str, seconds: float) -> Turn:
        """The finished turn, or the turn as it is when the time is over."""
        for part in waits(seconds):
            if (turn := self._send(calls.turn(turn_id, part))).finished:
                break
        return turn

    def stream(self, turn_id: str, *, after: int = 0) -> Iterator[tuple[int, Event]]:
        """Events with their numbers, from `after` on to the end; a broken connection is resumed."""
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
            except httpx.HTTPError as error:
                reading.broke(error)
            if not reading.over:
                time.sleep(reading.pause())

    def cancel(self, turn_id: str) -> Turn:
        return self._send(calls.cancel(turn_id))

    def create_conversation(
        self, conversation_id: str | None = None, **options: Unpack[ConversationOptions]
    ) -> Conversation:
        return self._send(calls.create_conversation(conversation_id, options))

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
        """Rows in input order from index `after` up to the first unfinished one."""
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
