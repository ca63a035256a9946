"""Conversations over HTTP: opened with settings, read back, and what they remember."""

from __future__ import annotations

import re

import pytest

from tests.api.conftest import Api

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
    for path, body in (("/v1/conversations", {}), ("/v1/batches", {"items": [{"message": "hi"}]})):
        reply = await api.http.post(path, json=body, headers={"Idempotency-Key": "a"})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "Idempotency-Key"
