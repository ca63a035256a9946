"""Conversations over HTTP: opened with settings, read back, and what they remember."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.api import worker
from tests.api.conftest import Api, Start

pytestmark = pytest.mark.anyio


async def test_a_conversation_is_opened_under_the_callers_id(api: Api) -> None:
    body = {"conversation_id": "user-42", "system_prompt": "Be brief.", "memory_k": 4, "metadata": {"a": "b"}}
    reply = await api.http.post("/v1/conversations", json=body)

    assert reply.status_code == 201
    assert reply.headers["location"] == "/v1/conversations/user-42"
    opened = reply.json()
    assert {name: opened[name] for name in body} == body
    assert opened["messages"] == 0
    assert (await api.http.get("/v1/conversations/user-42")).json() == opened


async def test_without_a_body_an_id_is_issued(api: Api) -> None:
    reply = await api.http.post("/v1/conversations")

    assert reply.status_code == 201
    assert re.fullmatch("[0-9a-f]{16}", reply.json()["conversation_id"])


async def test_an_id_is_opened_once(api: Api) -> None:
    body = {"conversation_id": "user-42"}
    await api.http.post("/v1/conversations", json=body)
    reply = await api.http.post("/v1/conversations", json=body)

    assert reply.status_code == 409
    assert reply.json()["error"]["code"] == "conversation_exists"


async def test_messages_come_in_pages(api: Api) -> None:
    await api.answered("My name is Ada.", "Hello Ada!", conversation="user-42")
    last = await api.answered("Who am I?", "Ada.", conversation="user-42")
    path = "/v1/conversations/user-42/messages"

    whole = (await api.http.get(path)).json()
    assert whole["object"] == "list"
    assert [message["content"] for message in whole["data"]] == [
        "My name is Ada.",
        "Hello Ada!",
        "Who am I?",
        "Ada.",
    ]
    assert [message["role"] for message in whole["data"]] == ["user", "assistant"] * 2
    assert whole["has_more"] is False

    first = (await api.http.get(path, params={"limit": 3})).json()
    rest = (await api.http.get(path, params={"after": 3, "limit": 3})).json()
    assert first["data"] + rest["data"] == whole["data"]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert last["conversation_id"] == "user-42"


@pytest.mark.parametrize("path", ["", "/messages"])
async def test_an_unknown_conversation_is_a_404(api: Api, path: str) -> None:
    assert (await api.http.get(f"/v1/conversations/nobody{path}")).status_code == 404


async def test_a_key_that_would_be_ignored_is_refused(api: Api) -> None:
    reply = await api.http.post("/v1/conversations", json={}, headers={"Idempotency-Key": "a"})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "Idempotency-Key"


@pytest.mark.parametrize("conversation_id", [".", "..", "x" * 129])
async def test_an_id_that_no_url_can_carry_is_refused(api: Api, conversation_id: str) -> None:
    reply = await api.http.post("/v1/conversations", json={"conversation_id": conversation_id})
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, "conversation_id")
    quoted = conversation_id.replace(".", "%2E")
    reply = await api.http.post(f"/v1/conversations/{quoted}/turns", json={"message": "Hello?"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (422, "conversation_id")


@pytest.mark.parametrize("conversation_id", ["...", ".a", "..-", "a.b"])
async def test_dots_are_no_harm_in_an_id(api: Api, conversation_id: str) -> None:
    reply = await api.http.post(f"/v1/conversations/{conversation_id}/turns", json={"message": "Hello?"})
    assert reply.status_code == 202
    assert (await api.http.get(f"/v1/conversations/{conversation_id}")).status_code == 200


async def test_settings_of_every_kind_are_kept_and_read(api: Api) -> None:
    body = {
        "conversation_id": "c",
        "temperature": 0.5,
        "max_tokens": 99,
        "tools": ["calculator"],
        "on_busy": "reject",
        "ttl": 600,
    }
    reply = await api.http.post("/v1/conversations", json=body)
    assert reply.status_code == 201, reply.text
    read = (await api.http.get("/v1/conversations/c")).json()
    assert {name: read[name] for name in body} == body


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 3),
        ("max_tokens", 0),
        ("tools", ["none"]),
        ("on_busy", "wait"),
        ("ttl", 0),
        ("ttl", 1.5),
    ],
)
async def test_a_wrong_setting_is_named(api: Api, field: str, value: object) -> None:
    reply = await api.http.post("/v1/conversations", json={"conversation_id": "c", field: value})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)
    assert (await api.http.get("/v1/conversations/c")).status_code == 404


async def test_conversations_are_listed_the_latest_first_and_in_pages(api: Api) -> None:
    for name in ("a", "b", "c"):
        await api.http.post("/v1/conversations", json={"conversation_id": name})
    await api.post(conversation="a")
    whole = (await api.http.get("/v1/conversations")).json()
    assert {found["conversation_id"] for found in whole["data"]} == {"a", "b", "c"}
    times = [found["last_turn_at"] for found in whole["data"]]
    assert times == sorted(times, reverse=True)
    assert (whole["object"], whole["has_more"], whole["next"]) == ("list", False, None)

    paged, before = [], None
    while True:
        params: dict[str, Any] = {"limit": 1} | ({"before": before} if before else {})
        page = (await api.http.get("/v1/conversations", params=params)).json()
        paged += page["data"]
        before = page["next"]
        assert page["has_more"] is (before is not None)
        if before is None:
            break
    assert paged == whole["data"]


@pytest.mark.parametrize(
    "query", ["before=x", "before=1", "before=1:a:b", "before=1:", "limit=0", "limit=1001"]
)
async def test_a_wrong_cursor_is_named(api: Api, query: str) -> None:
    reply = await api.http.get(f"/v1/conversations?{query}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, query.partition("=")[0])


async def test_an_erased_conversation_is_gone_with_all_its_turns(api: Api) -> None:
    first = await api.answered("My name is Ada.", "Hello Ada!", conversation="c")
    running = await api.post(conversation="c", client_message_id="k")
    await worker.claim(api.store, running["turn_id"])
    await api.post(conversation="c")

    reply = await api.http.delete("/v1/conversations/c")
    assert (reply.status_code, reply.json()) == (
        200,
        {
            "conversation_id": "c",
            "messages": 2,
            "turns": 3,
            "stopped": 1,
            "schedules": 0,
            "items": 0,
            "files": [],
        },
    )
    for path in ("/v1/conversations/c", f"/v1/turns/{first['turn_id']}", "/v1/conversations/c/export"):
        assert (await api.http.get(path)).status_code == 404
    assert (await api.http.delete("/v1/conversations/c")).status_code == 404
    assert (await api.http.get("/v1/conversations")).json()["data"] == []
    again = await api.http.post(
        "/v1/conversations/c/turns", json={"message": "Hello?", "client_message_id": "k"}
    )
    assert (again.status_code, again.json()["error"]["code"]) == (410, "gone")


async def test_what_is_exported_can_be_imported(api: Api) -> None:
    body = {"conversation_id": "c", "system_prompt": "Be brief.", "memory_k": 4, "metadata": {"a": "b"}}
    await api.http.post("/v1/conversations", json=body)
    await api.answered("My name is Ada. \u2028", "Hello Ada!", conversation="c")
    before = (await api.http.get("/v1/conversations/c")).json()
    messages = (await api.http.get("/v1/conversations/c/messages")).json()["data"]

    exported = (await api.http.get("/v1/conversations/c/export")).json()
    assert (exported["version"], exported["conversation_id"]) == (1, "c")
    assert exported["messages"] == messages
    assert exported["settings"]["memory_k"] == 4
    taken = await api.http.post("/v1/conversations/import", json=exported)
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "conversation_exists")
    assert taken.headers["x-should-retry"] == "false"

    await api.http.delete("/v1/conversations/c")
    made = await api.http.post("/v1/conversations/import", json=exported)
    # What came with it is its first version, before which there is none.
    assert made.json() == {**before, "baseline": 1}
    assert (made.status_code, made.headers["location"]) == (201, "/v1/conversations/c")
    assert (await api.http.get("/v1/conversations/c/export")).json() == exported


DOCUMENT: dict[str, Any] = {
    "version": 1,
    "conversation_id": "c",
    "created_at": 1_767_225_600.0,
    "settings": {},
    "messages": [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hi!"}],
}


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"version": 2}, 400, "version"),
        ({"version": None}, 400, "version"),
        ({"owner": "me"}, 400, "owner"),
        ({"conversation_id": "a/b"}, 422, "conversation_id"),
        ({"settings": {"memory": 3}}, 400, "settings.memory"),
        ({"settings": {"memory_k": 0}}, 400, "settings.memory_k"),
        ({"messages": [{"role": "system", "content": "x"}]}, 400, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "secret": 1}]}, 400, "messages[0].secret"),
        ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
        (
            {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]},
            400,
            "messages[0].tool_call_id",
        ),
    ],
)
async def test_a_document_that_is_wrong_makes_nothing(
    api: Api, fields: dict[str, Any], status: int, param: str
) -> None:
    reply = await api.http.post("/v1/conversations/import", json={**DOCUMENT, **fields})
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)
    assert (await api.http.get("/v1/conversations")).json()["data"] == []


async def test_an_import_may_be_as_long_as_a_batch(start: Start) -> None:
    api = await start(api_max_body_bytes=2000, api_max_batch_bytes=20_000)
    long = {**DOCUMENT, "messages": DOCUMENT["messages"] * 100}
    assert (await api.http.post("/v1/conversations/import", json=long)).status_code == 201
    longer = {**long, "messages": long["messages"] * 3}
    assert (await api.http.post("/v1/conversations/import", json=longer)).status_code == 413
