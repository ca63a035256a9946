"""The requests about batches that go beyond posting items and reading rows, which `calls` has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from aiforge.client.calls import Call, as_json, nothing, one, path_of
from aiforge.client.results import Batch

PAGE_BATCHES: Final = 100
_NAME: Final = "batches"
_PATH: Final = f"/v1/{_NAME}"
Steering = Literal["pause", "resume", "retry"]


class Listed(msgspec.Struct):
    """Some batches, and whether there are more."""

    data: list[Batch]
    has_more: bool = False


class Erased(msgspec.Struct):
    """How many answers are not kept any more."""

    answers: int


_batch: Final = one(Batch)
_erased: Final = one(Erased)
_listed: Final = one(Listed)


def submit_file(
    input_file_id: str, endpoint: str, window: str, fields: Mapping[str, Any], idempotency_key: str | None
) -> Call[Batch]:
    given = {
        "input_file_id": input_file_id,
        "endpoint": endpoint,
        "completion_window": window,
        **{name: value for name, value in fields.items() if value is not None},
    }
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    return Call("POST", _PATH, _batch, headers=headers, content=as_json(given))


def latest(after: str | None) -> Call[Listed]:
    params = {"limit": str(PAGE_BATCHES)} | ({} if after is None else {"after": after})
    return Call("GET", _PATH, _listed, params=params)


def steer(batch_id: str, how: Steering) -> Call[Batch]:
    path = f"{path_of(_NAME, batch_id)}/{how}"
    return Call("POST", path, _batch, settled=how != "retry")


def delete(batch_id: str) -> Call[None]:
    return Call("DELETE", path_of(_NAME, batch_id), nothing)


def forget_answers() -> Call[int]:
    return Call("DELETE", "/v1/cache", lambda response: _erased(response).answers)


def events(batch_id: str) -> str:
    """The path of a batch's event stream."""
    return f"{path_of(_NAME, batch_id)}/events"
