"""A conversation's past over HTTP: versions, going back, branching off, comparing; and its settings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api import worker
from tests.api.conftest import Api
from tests.api.sse import events

pytestmark = pytest.mark.anyio
C = "/v1/conversations/c"


async def talk(api: Api, *names: str) -> None:
    for name in names:
        await api.answered(f"q{name}", f"a{name}", conversation="c")


async def questions(api: Api, path: str = C) -> list[str]:
    found = (await api.http.get(f"{path}/messages")).json()["data"]
    return [message["content"] for message in found if message["role"] == "user"]


async def test_versions_come_in_pages(api: Api) -> None:
    await talk(api, "1", "2", "3")
    whole = (await api.http.get(f"{C}/versions")).json()
    assert [one["version"] for one in whole["data"]] == [1, 2, 3]
    assert [(one["kind"], one["messages"], one["to"]) for one in whole["data"]][-1] == ("turn", 6, None)
    first = (await api.http.get(f"{C}/versions", params={"limit": 2})).json()
    rest = (await api.http.get(f"{C}/versions", params={"after": 2})).json()
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert first["data"] + rest["data"] == whole["data"]


async def test_back_and_forth(api: Api) -> None:
    await talk(api, "1", "2")
    back = await api.http.post(f"{C}/checkout", json={"version": 1, "if_version": 2})
    assert (back.status_code, back.json()["version"], back.json()["messages"]) == (200, 3, 2)
    assert await questions(api) == ["q1"]
    late = await api.http.post(f"{C}/checkout", json={"version": 1, "if_version": 2})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "conversation_moved")
    assert (await api.http.post(f"{C}/checkout", json={"version": 2})).status_code == 200
    assert await questions(api) == ["q1", "q2"]
    unknown = await api.http.post(f"{C}/checkout", json={"version": 9})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")


async def test_no_checkout_under_a_turn(api: Api) -> None:
    await talk(api, "1")
    posted = await api.post(conversation="c")
    assert (await api.http.get(C)).json()["busy"] is True
    busy = await api.http.post(f"{C}/checkout", json={"version": 0})
    assert (busy.status_code, busy.json()["error"]["code"]) == (409, "conversation_busy")
    await (await worker.claim(api.store, posted["turn_id"])).answer("a")
    assert (await api.http.post(f"{C}/checkout", json={"version": 0})).status_code == 200
    assert await questions(api) == []


async def test_a_turn_that_was_gone_back_from_can_still_be_replayed(api: Api) -> None:
    posted = await api.answered("q1", "a1", conversation="c")
    before = await events(api.http, posted["turn_id"])
    assert [sent.event for sent in before] == ["queued", "started", "message", "done"]
    await api.http.post(f"{C}/checkout", json={"version": 0})
    await api.http.post(f"{C}/compact")
    assert await events(api.http, posted["turn_id"]) == before


async def test_a_branch_has_settings_of_its_own(api: Api) -> None:
    await api.http.post("/v1/conversations", json={"conversation_id": "c", "model": "m", "memory_k": 4})
    await talk(api, "1", "2")
    body = {"version": 1, "conversation_id": "d", "settings": {"model": "n"}}
    made = await api.http.post(f"{C}/branch", json=body)
    assert (made.status_code, made.headers["location"]) == (201, "/v1/conversations/d")
    assert (made.json()["model"], made.json()["memory_k"]) == ("n", 4)
    assert await questions(api, "/v1/conversations/d") == ["q1"]
    assert (await api.http.post(f"{C}/branch", json=body)).status_code == 409
    assert (await api.http.post(f"{C}/branch")).json()["messages"] == 4


async def test_diff(api: Api) -> None:
    await talk(api, "1", "2")
    diff = (await api.http.get(f"{C}/diff", params={"from": 1, "to": 2})).json()
    assert diff["removed"] == []
    assert [message["content"] for message in diff["added"]] == ["q2", "a2"]
    missing = await api.http.get(f"{C}/diff", params={"from": 1})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "to")


async def test_below_the_baseline(api: Api) -> None:
    await talk(api, "1", "2", "3")
    folded = await api.http.post(f"{C}/compact", json={"keep": 1})
    assert (folded.status_code, folded.json()["baseline"], folded.json()["messages"]) == (200, 2, 6)
    gone = await api.http.post(f"{C}/checkout", json={"version": 1})
    assert (gone.status_code, gone.json()["error"]["code"]) == (409, "version_compacted")
    assert (await api.http.post(f"{C}/compact")).json()["baseline"] == 3
    both = await api.http.post(f"{C}/compact", json={"keep": 1, "version": 1})
    assert (both.status_code, both.json()["error"]["param"]) == (400, "keep")


async def test_settings_change_one_by_one(api: Api) -> None:
    body = {"conversation_id": "c", "model": "m", "metadata": {"a": "1", "b": "2"}, "ttl": 600}
    await api.http.post("/v1/conversations", json=body)
    changed = await api.http.patch(
        C, json={"model": None, "metadata": {"a": None, "c": "3"}, "memory": "none"}
    )
    assert changed.status_code == 200
    found = changed.json()
    assert (found["model"], found["metadata"], found["memory"]) == (None, {"b": "2", "c": "3"}, "none")
    assert (found["ttl"], found["revision"]) == (600, 1)
    late = await api.http.patch(C, json={"model": "n", "if_revision": 0})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "conversation_changed")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"memory": "all"}, "memory"),
        ({"memory_k": 0}, "memory_k"),
        ({"tools": ["none"]}, "tools"),
        ({"ttl": 0}, "ttl"),
        ({"conversation_id": "d"}, "conversation_id"),
        ({"metadata": {"a": 1}}, "metadata"),
    ],
)
async def test_a_wrong_change_is_named_and_changes_nothing(
    api: Api, body: dict[str, Any], param: str
) -> None:
    await api.http.post("/v1/conversations", json={"conversation_id": "c"})
    reply = await api.http.patch(C, json=body)
    assert reply.status_code in (400, 422)
    assert reply.json()["error"]["param"] == param
    assert (await api.http.get(C)).json()["revision"] == 0


@pytest.mark.parametrize(
    ("verb", "path", "body"),
    [
        ("GET", "/versions", None),
        ("POST", "/checkout", {"version": 0}),
        ("POST", "/branch", {}),
        ("GET", "/diff?from=0&to=0", None),
        ("POST", "/compact", {}),
        ("PATCH", "", {"model": "m"}),
    ],
)
async def test_an_unknown_conversation_has_no_past(api: Api, verb: str, path: str, body: Any) -> None:
    reply = await api.http.request(verb, f"{C}{path}", json=body)
    assert reply.status_code == 404


async def test_a_list_of_what_was_asked_for(api: Api) -> None:
    for name, team in (("a", "red"), ("b", "blue"), ("c", "red")):
        await api.http.post("/v1/conversations", json={"conversation_id": name, "metadata": {"team": team}})
    await api.post(conversation="c")

    async def names(**params: Any) -> set[str]:
        reply = await api.http.get("/v1/conversations", params=params)
        assert reply.status_code == 200, reply.text
        return {one["conversation_id"] for one in reply.json()["data"]}

    assert await names(metadata="team=red") == {"a", "c"}
    assert await names(metadata="team=red", busy="false") == {"a"}
    assert await names(busy="true") == {"c"}
    assert await names(metadata=["team=red", "other=x"]) == set()
    page = (await api.http.get("/v1/conversations", params={"metadata": "team=red", "limit": 1})).json()
    assert page["has_more"] is True
    rest = await names(metadata="team=red", before=page["next"])
    assert {page["data"][0]["conversation_id"]} | rest == {"a", "c"}
    for wrong in ("team", ["a=1", "a=2"]):
        reply = await api.http.get("/v1/conversations", params={"metadata": wrong})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "metadata")
