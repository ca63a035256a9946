"""Turns over HTTP: posted, waited for, read, cancelled; and what the API says to nonsense."""

from __future__ import annotations

import asyncio

import pytest

from tests.api import worker
from tests.api.conftest import Api, Start
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_a_posted_turn_is_accepted_and_can_be_read(api: Api) -> None:
    reply = await api.http.post("/v1/turns", json={"message": "Hello?", "metadata": {"channel": "web"}})

    turn = reply.json()
    assert reply.status_code == 202
    assert reply.headers["location"] == f"/v1/turns/{turn['turn_id']}"
    assert reply.headers["x-turn-id"] == turn["turn_id"]
    assert "idempotent-replayed" not in reply.headers
    assert turn["state"] == "queued"
    assert turn["metadata"] == {"channel": "web"}
    assert [turn[name] for name in ("answer", "error", "usage", "cost", "finished_at")] == [None] * 5
    assert (await api.http.get(reply.headers["location"])).json() == turn


async def test_an_answered_turn_carries_answer_usage_and_exact_cost(api: Api) -> None:
    posted = await api.answered("Hello?", "Hi!", conversation="user-42")

    turn = (await api.http.get(f"/v1/turns/{posted['turn_id']}")).json()
    assert turn["conversation_id"] == "user-42"
    assert turn["state"] == "completed"
    assert turn["answer"] == "Hi!"
    assert turn["usage"]["input_tokens"] == 12
    assert turn["cost"] == "0.0000036"
    assert turn["attempts"] == 1
    assert turn["finished_at"] >= turn["created_at"] > 1_700_000_000


async def test_a_failed_turn_says_why(api: Api) -> None:
    posted = await api.post()
    await (await worker.claim(api.store, posted["turn_id"])).fail("provider_timeout", "no token came")

    turn = (await api.http.get(f"/v1/turns/{posted['turn_id']}")).json()
    assert turn["state"] == "failed"
    assert turn["error"] == {"code": "provider_timeout", "message": "no token came", "retryable": False}


async def test_wait_returns_the_finished_turn(api: Api) -> None:
    waiting = asyncio.create_task(
        api.http.post(
            "/v1/conversations/user-42/turns?wait=20", json={"message": "Hello?", "client_message_id": "a"}
        )
    )
    turn_id = (await _replayed(api, waiting))["turn_id"]
    await (await worker.claim(api.store, turn_id)).answer("Hi!")

    reply = await waiting
    assert reply.status_code == 200
    assert reply.json()["answer"] == "Hi!"


async def test_a_wait_that_runs_out_returns_the_accepted_turn(api: Api) -> None:
    reply = await api.http.post("/v1/turns?wait=0.05", json={"message": "Hello?"})

    assert reply.status_code == 202
    assert reply.json()["state"] == "queued"
    assert reply.headers["location"] == f"/v1/turns/{reply.json()['turn_id']}"


async def test_reading_can_wait_too(api: Api) -> None:
    posted = await api.post()
    waiting = asyncio.create_task(api.http.get(f"/v1/turns/{posted['turn_id']}?wait=20"))
    await (await worker.claim(api.store, posted["turn_id"])).answer("Hi!")

    assert (await waiting).json()["answer"] == "Hi!"


async def test_a_wait_ends_when_the_process_drains(api: Api) -> None:
    posted = await api.post()
    waiting = asyncio.create_task(api.http.get(f"/v1/turns/{posted['turn_id']}?wait=300"))
    await eventually(lambda: _tasks("wait"))
    api.service.streams.drain()

    async with asyncio.timeout(5):
        assert (await waiting).json()["state"] == "queued"
    assert not _tasks("wait")


@pytest.mark.parametrize("by", ["header", "field"])
async def test_the_same_key_is_taken_once(api: Api, by: str) -> None:
    headers = {"Idempotency-Key": "order-7"} if by == "header" else {}
    body = {"message": "Hello?"} | ({"client_message_id": "order-7"} if by == "field" else {})
    path = "/v1/conversations/user-42/turns"
    first = await api.http.post(path, json=body, headers=headers)
    second = await api.http.post(path, json=body, headers=headers)
    other = await api.http.post(path, json=body | {"message": "Bye."}, headers=headers)

    assert second.status_code == 202
    assert second.json()["turn_id"] == first.json()["turn_id"]
    assert second.headers["idempotent-replayed"] == "true"
    assert other.status_code == 409
    assert other.json()["error"]["code"] == "idempotency_mismatch"


async def test_header_and_field_that_differ_are_refused(api: Api) -> None:
    reply = await api.http.post(
        "/v1/turns", json={"message": "Hello?", "client_message_id": "a"}, headers={"Idempotency-Key": "b"}
    )
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "client_message_id"


async def test_if_not_exists_reject_refuses_a_new_conversation(api: Api) -> None:
    path = "/v1/conversations/user-42/turns?if_not_exists=reject"
    refused = await api.http.post(path, json={"message": "Hello?"})
    await api.http.post("/v1/conversations", json={"conversation_id": "user-42"})
    accepted = await api.http.post(path, json={"message": "Hello?"})

    assert refused.status_code == 404
    assert accepted.status_code == 202


async def test_a_queued_turn_is_cancelled_at_once(api: Api) -> None:
    posted = await api.post()
    reply = await api.http.post(f"/v1/turns/{posted['turn_id']}/cancel")

    assert reply.status_code == 200
    assert reply.json()["state"] == "cancelled"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"message": "hi", "temperatur": 1}, "unknown_field", "temperatur"),
        ({}, "missing_field", "message"),
        ({"message": 3}, "invalid_value", "message"),
        ({"message": "  "}, "invalid_value", "message"),
        ({"message": "hi", "temperature": "warm"}, "invalid_value", "temperature"),
        ({"message": "hi", "temperature": 7}, "invalid_value", "temperature"),
        ({"message": "hi", "max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"message": "hi", "max_tokens": 10**30}, "invalid_value", "max_tokens"),
        ({"message": [{"type": 5}]}, "invalid_value", "message[0].type"),
        ({"message": [{"type": "text"}]}, "invalid_value", "message[0]"),
        ({"message": [{"type": "text", "text": 5}]}, "invalid_value", "message[0].text"),
        ({"message": [{"type": "video"}]}, "invalid_value", "message[0].type"),
        ({"message": "hi", "tools": ["no_such_tool"]}, "invalid_value", "tools"),
        ({"message": "hi", "stream": True}, "unknown_field", "stream"),
        ([], "invalid_value", None),
    ],
)
async def test_a_wrong_field_is_named(api: Api, body: object, code: str, param: str | None) -> None:
    reply = await api.http.post("/v1/turns", json=body)

    error = reply.json()["error"]
    assert reply.status_code == 400
    assert (error["code"], error["param"]) == (code, param)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("depth", [15, 500, 900, 930, 940, 950, 960, 970, 980, 990, 1_000])
async def test_a_part_nested_without_end_is_refused(api: Api, depth: int) -> None:
    """Also where a parser still reads what a writer no longer writes."""
    part = '{"type": "text", "text": "x", "a": ' + "[" * depth + "]" * depth + "}"
    reply = await api.http.post(
        "/v1/turns", content='{"message": [' + part + "]}", headers={"Content-Type": "application/json"}
    )
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["code"] in {"invalid_value", "invalid_json"}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("wait=301", "wait"),
        ("wait=-1", "wait"),
        ("wait=nan", "wait"),
        ("wiat=3", "wiat"),
        ("if_not_exists=maybe", "if_not_exists"),
    ],
)
async def test_a_wrong_parameter_is_named(api: Api, query: str, param: str) -> None:
    reply = await api.http.post(f"/v1/conversations/user-42/turns?{query}", json={"message": "hi"})

    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


@pytest.mark.parametrize("path", ["..%2Fx", "a:b", "*", "%7Btag%7D", "x%00", "x" * 10_000, "x%0A"])
async def test_a_malformed_id_is_refused_and_reaches_no_key(api: Api, path: str) -> None:
    for method, url in (
        ("GET", f"/v1/turns/{path}"),
        ("GET", f"/v1/turns/{path}/events"),
        ("POST", f"/v1/turns/{path}/cancel"),
        ("GET", f"/v1/conversations/{path}"),
        ("GET", f"/v1/conversations/{path}/messages"),
        ("POST", f"/v1/conversations/{path}/turns"),
        ("GET", f"/v1/batches/{path}"),
        ("GET", f"/v1/batches/{path}/results"),
    ):
        body = {"message": "hi"} if method == "POST" and url.endswith("turns") else None
        reply = await api.http.request(method, url, json=body)
        assert reply.status_code in ({404, 422} if "batches" in url else {422}), url[:80]
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert len(reply.content) < 500
    keys = await api.store.connection.command("KEYS", f"*{api.service.settings.namespace}*")
    assert keys == []


@pytest.mark.parametrize("conversation_id", ["../x", "a:b", "*", "{tag}", "\0", "x" * 10_000, "", "ü"])
async def test_a_malformed_id_in_a_body_is_refused_too(api: Api, conversation_id: str) -> None:
    reply = await api.http.post("/v1/conversations", json={"conversation_id": conversation_id})

    assert reply.status_code == 422
    assert reply.json()["error"]["param"] == "conversation_id"


@pytest.mark.parametrize(
    "path", ["/v1/turns/170000000000000000000a", "/v1/turns/170000000000000000000a/events"]
)
async def test_what_does_not_exist_is_a_404(api: Api, path: str) -> None:
    reply = await api.http.get(path)

    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "not_found"


async def test_a_store_that_does_not_answer_is_a_503(start: Start) -> None:
    with RedisServer() as server:
        api = await start(redis_url=server.url)
        server.kill()

        reply = await api.http.post("/v1/turns", json={"message": "hi"})
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "store_unavailable"
        assert reply.headers["retry-after"] == "1"
        assert (await api.http.get("/readyz")).status_code == 503
        assert (await api.http.get("/livez")).status_code == 200
        assert "aiforge_turns_stored" not in (await api.http.get("/metrics")).text


async def _replayed(api: Api, waiting: asyncio.Task[object]) -> dict[str, str]:
    """The turn that another request is just posting, found by its key."""
    await eventually(lambda: _tasks("wait") or waiting.done())
    reply = await api.http.post(
        "/v1/conversations/user-42/turns", json={"message": "Hello?", "client_message_id": "a"}
    )
    assert reply.headers["idempotent-replayed"] == "true"
    found: dict[str, str] = reply.json()
    return found


def _tasks(name: str) -> list[asyncio.Task[object]]:
    """Running tasks whose coroutine is the client's `name`."""
    return [
        task
        for task in asyncio.all_tasks()
        if getattr(task.get_coro(), "__qualname__", "") == f"TurnClient.{name}"
    ]
