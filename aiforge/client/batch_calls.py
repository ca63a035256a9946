"""The requests about batches, their rows, and the answers that are kept for later ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import httpx
import msgspec

from aiforge.client.call import ANSWER_SECONDS, Call, Page, as_json, keyed, nothing, one, pages, path_of, said
from aiforge.client.results import Batch, Item, Row

PAGE_BATCHES: Final = 100
FIRST_ROWS: Final = 50
PAGE_ROWS: Final = 1000
PAGE_BYTES: Final = 8 * 1024 * 1024
"""A page of rows is about as long as that at most: it is held whole."""
_NAME: Final = "batches"
_PATH: Final = f"/v1/{_NAME}"
Steering = Literal["cancel", "pause", "resume", "retry"]


class Erased(msgspec.Struct):
    """How many answers are not kept any more."""

    answers: int


_batch: Final = one(Batch)
_erased: Final = one(Erased)
_row: Final = msgspec.json.Decoder(Row)


def submit(
    items: Iterable[str | Item], fields: Mapping[str, Any], idempotency_key: str | None
) -> Call[Batch]:
    whole = [Item(message=item) if isinstance(item, str) else item for item in items]
    return Call(
        "POST",
        _PATH,
        _batch,
        headers=keyed(idempotency_key),
        content=as_json(said(items=whole, **fields)),
        seconds=5 * ANSWER_SECONDS,
    )


def submit_file(
    input_file_id: str, endpoint: str, window: str, fields: Mapping[str, Any], idempotency_key: str | None
) -> Call[Batch]:
    body = as_json(said(input_file_id=input_file_id, endpoint=endpoint, completion_window=window, **fields))
    return Call("POST", _PATH, _batch, headers=keyed(idempotency_key), content=body)


def latest(after: str | None = None) -> Call[Page[Batch]]:
    params = said(limit=str(PAGE_BATCHES), after=after)
    return pages(Batch, _PATH, params, lambda answer: latest(answer.data[-1].id))


def read(batch_id: str) -> Call[Batch]:
    return Call("GET", path_of(_NAME, batch_id), _batch)


def results(batch_id: str, after: int, limit: int = FIRST_ROWS) -> Call[Page[Row]]:
    def page(response: httpx.Response) -> Page[Row]:
        # Only LF separates lines: a U+2028 inside an answer does not.
        rows = [_row.decode(line) for line in response.content.split(b"\n") if line.strip()]
        if not rows:
            return Page(rows, None)
        fitting = PAGE_BYTES * len(rows) // len(response.content)
        return Page(rows, results(batch_id, rows[-1].index + 1, max(1, min(fitting, PAGE_ROWS))))

    params = {"after": str(after), "limit": str(limit)}
    return Call("GET", path_of(_NAME, batch_id, "results"), page, params=params)


def events(batch_id: str) -> str:
    """The path of a batch's event stream."""
    return path_of(_NAME, batch_id, "events")


def steer(batch_id: str, how: Steering) -> Call[Batch]:
    return Call("POST", path_of(_NAME, batch_id, how), _batch, settled=how in ("pause", "resume"))


def delete(batch_id: str) -> Call[None]:
    return Call("DELETE", path_of(_NAME, batch_id), nothing)


def forget_answers() -> Call[int]:
    return Call("DELETE", "/v1/cache", lambda response: _erased(response).answers)
