"""One key, one turn: whoever asks again, in whatever way, meets what the first one began."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from aiforge.client import AsyncClient, ConflictError, NotFoundError
from tests.aiforge.cli.command import Desk, Ended
from tests.api import worker
from tests.api.conftest import Api
from worker.contract.schemas import Line

pytestmark = pytest.mark.anyio
KEY: Final = "order 7"
HELLO: Final[dict[str, Any]] = {"message": "Hello?"}
BY_FIELD: Final = {**HELLO, "client_message_id": KEY}
BY_HEADER: Final = {"Idempotency-Key": KEY}
PATHS: Final = ("/v1/turns", "/v1/conversations/c/turns")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("query", "headers", "body", "status", "code"),
    [
        ("", BY_HEADER, HELLO, 202, None),
        ("", {}, BY_FIELD, 202, None),
        ("", BY_HEADER, BY_FIELD, 202, None),
        ("?wait=5", BY_HEADER, HELLO, 200, None),
        ("", {**BY_HEADER, "Accept": "text/event-stream"}, HELLO, 200, None),
        ("", BY_HEADER, {"message": "Bye."}, 409, "idempotency_mismatch"),
        ("", BY_HEADER, {**HELLO, "model": "other"}, 409, "idempotency_mismatch"),
        ("", BY_HEADER, {**HELLO, "client_message_id": "another"}, 400, "invalid_value"),
        ("", {"Idempotency-Key": "x" * 256}, HELLO, 400, None),
        ("", {}, {**HELLO, "client_message_id": "\0"}, 400, None),
    ],
)
async def test_what_a_repetition_is_told(
    path: str,
    query: str,
    headers: dict[str, str],
    body: dict[str, Any],
    *,
    status: int,
    code: str | None,
    api: Api,
) -> None:
    first = await api.http.post(path, json=HELLO, headers=BY_HEADER)
    assert (first.status_code, first.headers.get("idempotent-replayed")) == (202, None)
    turn_id = first.json()["turn_id"]
    await (await worker.claim(api.store, turn_id)).answer("Hi!")

    again = await api.http.post(path + query, json=body, headers=headers)
    assert again.status_code == status, again.text
    if status < 300:
        assert (again.headers["idempotent-replayed"], again.headers["x-turn-id"]) == ("true", turn_id)
        assert "Hi!" in again.text
    else:
        assert "idempotent-replayed" not in again.headers
        assert code is None or again.json()["error"]["code"] == code
    assert await api.store.line(first.json()["conversation_id"]) == Line(active=None, waiting=[])


async def test_fifty_at_once_are_one_turn(api: Api) -> None:
    replies = await asyncio.gather(
        *(api.http.post("/v1/turns", json=HELLO, headers=BY_HEADER) for _ in range(50))
    )
    assert {reply.status_code for reply in replies} == {202}
    assert len({reply.json()["turn_id"] for reply in replies}) == 1
    assert sorted(reply.headers.get("idempotent-replayed", "") for reply in replies) == ["", *["true"] * 49]
    assert (await api.store.stats()).ready == 1


async def test_a_busy_conversation_replays_instead_of_refusing(api: Api) -> None:
    body = {**BY_FIELD, "on_busy": "reject"}
    first = await api.http.post(PATHS[1], json=body)
    again = await api.http.post(PATHS[1], json=body)
    other = await api.http.post(PATHS[1], json={**HELLO, "on_busy": "reject"})
    assert (first.status_code, again.status_code, other.status_code) == (202, 202, 409)
    assert other.json()["error"]["code"] == "conversation_busy"


async def test_an_erased_turn_does_not_come_back(api: Api) -> None:
    first = (await api.http.post(PATHS[0], json=HELLO, headers=BY_HEADER)).json()
    await api.http.delete(f"/v1/conversations/{first['conversation_id']}")
    again = await api.http.post(PATHS[0], json=HELLO, headers=BY_HEADER)
    assert (again.status_code, again.json()["error"]["code"]) == (410, "gone")
    assert (await api.http.get("/v1/turns", params={"idempotency_key": KEY})).status_code == 404
    assert (await api.store.stats()).ready == 0


async def test_the_client_meets_the_same_turn(api: Api) -> None:
    async with AsyncClient(api.url) as client:
        first = await client.submit("Hello?", conversation_id="c", idempotency_key=KEY)
        again = await client.submit("Hello?", conversation_id="c", idempotency_key=KEY)
        assert again.turn_id == first.turn_id
        assert (await client.find_turn(KEY, conversation_id="c")).turn_id == first.turn_id
        with pytest.raises(ConflictError) as conflict:
            await client.submit("Bye.", conversation_id="c", idempotency_key=KEY)
        assert conflict.value.code == "idempotency_mismatch"
        await client.erase("c")
        with pytest.raises(NotFoundError):
            await client.submit("Hello?", conversation_id="c", idempotency_key=KEY)


async def test_the_command_line_meets_the_same_turn(api: Api, tmp_path: Path) -> None:
    desk = Desk(tmp_path, AIFORGE_API_URL=api.url)

    async def submitted(message: str) -> Ended:
        return await asyncio.to_thread(desk.run, "submit", message, "-c", "c", "--key", KEY)

    first = await submitted("Hello?")
    again = await submitted("Hello?")
    assert (first.code, again.code, again.out) == (0, 0, first.out)
    over_http = await api.http.post(PATHS[1], json=HELLO, headers=BY_HEADER)
    assert over_http.json()["turn_id"] == first.out.strip()
    other = await submitted("Bye.")
    assert (other.code, "another body" in other.err) == (1, True)
