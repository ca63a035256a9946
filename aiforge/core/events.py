"""The closed union of everything that happens during a turn.

The library yields these from `ChatAgent.astream_events`; the service stores the same union in a
turn's log and sends it to readers. `queued`, `started`, `gap` and the terminal events exist only
in the service, where a turn outlives the process that runs it.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final, TypeAlias

import msgspec

from aiforge.core.types import Usage as Tokens


class _Event(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of the union: encodes as a JSON object with its `type`."""


class Queued(_Event, frozen=True, tag="queued"):
    """The turn is stored and will run."""


class Started(_Event, frozen=True, tag="started"):
    """An attempt claimed the turn; the first attempt is 1."""

    attempt: int


class Token(_Event, frozen=True, tag="token"):
    """Text of the answer as the provider sent it; `round` counts from 0 within the attempt."""

    text: str
    round: int = 0


class Preamble(_Event, frozen=True, tag="preamble"):
    """The tokens of this round were not the answer: the round ended in tool calls."""

    text: str
    round: int


class ToolCall(_Event, frozen=True, tag="tool_call"):
    """The model asks for a tool."""

    id: str
    name: str
    input: dict[str, Any]
    round: int = 0


class ToolResult(_Event, frozen=True, tag="tool_result"):
    """A tool call ended; `ok` is False when `output` is an error text for the model."""

    id: str
    name: str
    output: str
    ok: bool = True
    round: int = 0


class UsageReport(_Event, frozen=True, tag="usage"):
    """One provider call was paid for; `cost` is USD, None when no price is known."""

    call_id: str
    model: str
    usage: Tokens
    cost: Decimal | None


class Message(_Event, frozen=True, tag="message"):
    """The answer, final and stored. `stopped` marks the partial answer of a cancelled turn."""

    text: str
    stopped: bool = False
    iteration_limit: bool = False


class Reset(_Event, frozen=True, tag="reset"):
    """Forget all tokens so far: attempt `attempt` begins from the start."""

    attempt: int


class RequiresAction(_Event, frozen=True, tag="requires_action"):
    """The turn waits for a human."""

    question_id: str
    kind: str
    text: str


class Gap(_Event, frozen=True, tag="gap", rename={"first": "from", "last": "to"}):
    """The events with numbers `first` to `last` are no longer kept; JSON calls these `from` and `to`."""

    first: int
    last: int


class Error(_Event, frozen=True, tag="error"):
    """Why the turn cannot end well; in the service a terminal event follows."""

    code: str
    message: str
    retryable: bool = False


class Done(_Event, frozen=True, tag="done"):
    """Terminal: the turn is completed."""


class Failed(_Event, frozen=True, tag="failed"):
    """Terminal: the turn failed."""

    code: str
    message: str


class Cancelled(_Event, frozen=True, tag="cancelled"):
    """Terminal: the turn was cancelled."""


class Expired(_Event, frozen=True, tag="expired"):
    """Terminal: the turn's time was over before it ran."""


Terminal: TypeAlias = Done | Failed | Cancelled | Expired
Event: TypeAlias = (
    Queued
    | Started
    | Token
    | Preamble
    | ToolCall
    | ToolResult
    | UsageReport
    | Message
    | Reset
    | RequiresAction
    | Gap
    | Error
    | Terminal
)

TERMINAL_EVENTS: Final = (Done, Failed, Cancelled, Expired)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """One line of UTF-8 JSON without a raw newline; money is a plain decimal string, without exponent."""
    if isinstance(event, UsageReport) and event.cost is not None:
        plain = {"type": name(event), **msgspec.structs.asdict(event), "cost": f"{event.cost:f}"}
        return _encoder.encode(plain)
    return _encoder.encode(event)


def decode(data: bytes | str) -> Event:
    """The inverse of `encode`; raises msgspec.ValidationError on anything else."""
    return _decoder.decode(data)


def name(event: Event) -> str:
    """The event's `type` as it stands in JSON and in an SSE `event:` line."""
    return str(event.__struct_config__.tag)
