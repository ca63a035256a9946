"""The entries of a conversation's log: each says what one step changed, and nothing of what was before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, TypeAlias

import msgspec

from aiforge.core.events import Event, Token
from aiforge.core.request import Action
from aiforge.core.types import StoreError


class Tokens(msgspec.Struct, frozen=True, tag_field="type", tag="tokens"):
    """Token events that came one after the other, without their repetitions."""

    round: int
    texts: list[str]


class Summarized(msgspec.Struct, frozen=True):
    """A summary took the place of the first so many messages of memory."""

    messages: int
    summary: str


class _Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    at: float
    """Unix seconds."""


class TurnEntry(_Entry, frozen=True, kw_only=True, tag="turn"):
    """A turn that ended well. `turn` counts from 1 and never repeats."""

    turn: int
    turn_id: str
    messages: list[dict[str, Any]]
    summarized: list[Summarized] = []
    events: list[Event | Tokens] = []
    actions: list[Action] = []
    metadata: dict[str, str] = {}


class PausedEntry(_Entry, frozen=True, kw_only=True, tag="paused"):
    """A turn that waits for a human. Memory does not know of it before it has ended."""

    turn: int
    turn_id: str
    messages: list[dict[str, Any]]
    question: dict[str, Any]
    message: str
    system_prompt: str | None = None
    begun: list[str] = []
    """Ids of calls that a human allowed, and that may have run even where they have no result."""
    summarized: list[Summarized] = []
    events: list[Event | Tokens] = []
    actions: list[Action] = []
    metadata: dict[str, str] = {}


class CheckoutEntry(_Entry, frozen=True, kw_only=True, tag="checkout"):
    """The conversation is again what it was at version `to`."""

    to: int


class DeliveredEntry(_Entry, frozen=True, kw_only=True, tag="delivered"):
    """Actions that were dispatched."""

    ids: list[str]


class SnapshotEntry(_Entry, frozen=True, kw_only=True, tag="snapshot"):
    """All that a conversation was at this version; what was before is gone."""

    turn: int
    messages: list[dict[str, Any]]
    remembered: int
    """How many of the last messages no summary stands for."""
    summary: str | None = None
    actions: list[Action] = []
    """Those not yet dispatched."""


Entry: TypeAlias = TurnEntry | PausedEntry | CheckoutEntry | DeliveredEntry | SnapshotEntry

_encoder = msgspec.json.Encoder(decimal_format="string")
_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


def encode(entry: Entry) -> bytes:
    """One line of JSON."""
    return _encoder.encode(entry)


def decode(data: bytes) -> Entry:
    """The inverse of `encode`; raises StoreError on anything else."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise StoreError(f"the store holds what is no entry of a conversation: {error}") from None


def packed(events: Iterable[Event]) -> list[Event | Tokens]:
    """The same events, with tokens of a round in one piece."""
    found: list[Event | Tokens] = []
    for round_, group in groupby(events, lambda event: event.round if isinstance(event, Token) else None):
        if round_ is None:
            found.extend(group)
        else:
            found.append(Tokens(round_, [event.text for event in group if isinstance(event, Token)]))
    return found


def unpacked(events: Iterable[Event | Tokens]) -> Iterator[Event]:
    """The inverse of `packed`."""
    for event in events:
        if isinstance(event, Tokens):
            yield from (Token(text, event.round) for text in event.texts)
        else:
            yield event
