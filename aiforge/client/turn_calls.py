"""The requests about turns and dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aiforge.client.call import (
    ANSWER_SECONDS,
    Call,
    Listed,
    as_json,
    keyed,
    listed,
    nothing,
    one,
    path_of,
    said,
)
from aiforge.client.results import Content, Turn

_turn: Final = one(Turn)
_turns: Final = listed(Turn)


def submit(
    message: Content,
    *,
    conversation_id: str | None,
    if_not_exists: str | None,
    idempotency_key: str | None,
    wait: float | None,
    on_disconnect: str | None,
    fields: Mapping[str, Any],
) -> Call[Turn]:
    path = "/v1/turns" if conversation_id is None else path_of("conversations", conversation_id, "turns")
    seconds = None if wait is None else f"{wait:g}"
    return Call(
        "POST",
        path,
        _turn,
        params=said(if_not_exists=if_not_exists, wait=seconds, on_disconnect=on_disconnect),
        headers=keyed(idempotency_key),
        content=as_json(said(message=message, **fields)),
        seconds=ANSWER_SECONDS + (wait or 0),
    )


def turn(turn_id: str, wait: float | None = None) -> Call[Turn]:
    params = {} if wait is None else {"wait": f"{wait:g}"}
    path = path_of("turns", turn_id)
    return Call("GET", path, _turn, params=params, seconds=ANSWER_SECONDS + (wait or 0))


def find(idempotency_key: str, conversation_id: str | None) -> Call[Turn]:
    params = said(idempotency_key=idempotency_key, conversation_id=conversation_id)
    return Call("GET", "/v1/turns", _turn, params=params)


def cancel(turn_id: str, if_state: str | None) -> Call[Turn]:
    params = said(if_state=if_state)
    return Call("POST", path_of("turns", turn_id, "cancel"), _turn, params=params, settled=if_state is None)


def resume(turn_id: str, question_id: str, answer: str) -> Call[Turn]:
    body = as_json({"question_id": question_id, "answer": answer})
    return Call("POST", path_of("turns", turn_id, "resume"), _turn, content=body, settled=True)


def events(turn_id: str) -> str:
    """The path of a turn's event stream."""
    return path_of("turns", turn_id, "events")


def dead_letters(limit: int) -> Call[Listed[Turn]]:
    return Call("GET", "/v1/dead", _turns, params={"limit": str(limit)})


def dead_letter(turn_id: str) -> Call[Turn]:
    return Call("GET", path_of("dead", turn_id), _turn)


def requeue_dead(turn_id: str) -> Call[Turn]:
    return Call("POST", path_of("dead", turn_id, "requeue"), _turn, settled=True)


def drop_dead(turn_id: str) -> Call[None]:
    return Call("DELETE", path_of("dead", turn_id), nothing)
