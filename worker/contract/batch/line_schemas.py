"""OpenAI's form of a batch: a file of requests to one endpoint, one a line."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

MAX_BATCH_LINES: Final = 1_000_000
Endpoint: TypeAlias = Literal["/v1/chat/completions", "/v1/responses"]
"""What the lines of a file can ask for."""


class LineItem(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a file: `id` is its `custom_id`, `body` the request as it was written."""

    id: str
    body: msgspec.Raw


class OutputExpiry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the files of a batch's results live, in seconds."""

    anchor: Literal["created_at"]
    seconds: int


class LineResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider answered to a line: status, its id of the request, and the body as it came."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a line of a file; lines are counted from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Wrong(Exception):
    """What is wrong with a line."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class LineErrors(msgspec.Struct, frozen=True, kw_only=True):
    """The first lines that are wrong, and how many there are."""

    total: int = 0
    data: list[LineError] = []
