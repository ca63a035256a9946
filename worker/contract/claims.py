"""What the store tells those who run turns: a claim, or why there is none, and how a commit went."""

from __future__ import annotations

import secrets
from typing import Literal, NamedTuple

from aiforge.core.events import Event
from worker.contract.places import Place
from worker.contract.schemas import ConversationSettings, Paused, Stop, StoredMessage, TurnRequest


class Refused(NamedTuple):
    """A claim that was not granted; nothing has changed."""

    why: Literal["gone", "newer", "refused"]
    detail: str


class Log(NamedTuple):
    """Where an attempt's events go: made once, because every flush of every turn needs it."""

    keys: list[str]
    channel: str


class Claim(NamedTuple):
    """A turn that this worker may run until its lease ends."""

    place: Place
    token: str
    fence: int
    attempt: int
    suspect: bool
    waited: float
    """Seconds from its submission to this claim."""
    request: TurnRequest
    settings: ConversationSettings
    memory_k: int
    window: list[StoredMessage]
    log: Log
    paused: Paused | None = None
    """What the turn has so far, when it waited for a human; `answer` is what that one said."""
    answer: str = ""
    stop: Stop | None = None
    """Someone asked for its end while nobody ran it."""
    before: int = 0
    """How many messages of the conversation stand before the window."""
    summary: str | None = None
    """What was before the window, where the conversation remembers that."""
    lives: float | None = None
    """Seconds that the conversation is kept after its last turn's end; None is for ever."""
    batch_id: str | None = None
    """The batch that it is an item of."""
    api_key: str | None = None
    """The name of the key that it was posted with."""


class Finished(NamedTuple):
    """Whether a commit was accepted, and the conversation's next turn, which is now ready."""

    accepted: bool
    following: str | None
    rolled_back: bool = False
    """Refused because the turn is to be forgotten; it has to be ended as cancelled."""


class Left(NamedTuple):
    """A turn's request, its conversation's settings and latest messages, and its own latest events."""

    request: TurnRequest
    settings: ConversationSettings
    window: list[StoredMessage]
    events: list[Event]


def new_token() -> str:
    """Names one claim, and the provider calls made under it."""
    return secrets.token_hex(4)
