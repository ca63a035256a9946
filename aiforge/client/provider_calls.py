"""What the clients ask about the health of models."""

from __future__ import annotations

from typing import Final

import msgspec

from aiforge.client.calls import Call, nothing, one


class ModelHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How one model fares with all workers. Times are Unix seconds; a limit that is None does not exist."""

    name: str
    circuit: str
    """`closed`, `open` after too many failures, `half_open` while one call finds out whether it is over."""
    open_until: float | None = None
    cooling_until: float | None = None
    failures: int = 0
    """Failed calls in a row."""
    pace: float = 1.0
    """The share of its usual pace that the model is asked at."""
    chats_in_flight: int = 0
    items_in_flight: int = 0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


class Listed(msgspec.Struct):
    """Models by name."""

    data: list[ModelHealth]


_listed: Final = one(Listed)


def providers() -> Call[Listed]:
    return Call("GET", "/v1/providers", _listed)


def reset(name: str) -> Call[None]:
    return Call("POST", "/v1/providers/reset", nothing, params={"name": name}, settled=True)
