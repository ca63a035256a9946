"""Turns that wait: what a busy conversation does, its queue, what begins later, and look-up by key."""

from __future__ import annotations

import time

import pytest

from tests.api import worker
from tests.api.conftest import Api

pytestmark = pytest.mark.anyio
QUEUE = "/v1/conversations/c/queue"


async def line(api: Api) -> dict[str, object]:
    found: dict[str, object] = (await api.http.get(QUEUE)).json()
    return found


async def test_a1_a_busy_conversation_refuses_and_says_that_repeating_is_no_use(api: Api) -> None:
    active = await api.post(conversation="c")
    reply = await api.http.post(
        "/v1/conversations/c/turns", json={"message": "Hello?", "on_busy": "reject", "client_message_id": "k"}
    )
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (409, "conversation_busy")
    assert active["turn_id"] in error["message"]
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after" not in reply.headers
    assert await line(api) == {"active": active["turn_id"], "waiting": []}
    lookup = await api.http.get("/v1/turns?idempotency_key=k&conversation_id=c")
    assert lookup.status_code == 404


async def test_a_conversation_can_refuse_by_itself_and_a_turn_can_differ(api: Api) -> None:
    await api.http.post("/v1/conversations", json={"conversation_id": "c", "on_busy": "reject"})
    await api.post(conversation="c")
    for body, status in (({}, 409), ({"on_busy": None}, 409), ({"on_busy": "enqueue"}, 202)):
        reply = await api.http.post("/v1/conversations/c/turns", json={"message": "Hello?", **body})
        assert reply.status_code == status


@pytest.mark.parametrize("how", ["interrupt", "rollback"])
async def test_a_turn_that_nobody_runs_yet_makes_way(api: Api, how: str) -> None:
    first = await api.post(conversation="c")
    waiting = await api.post(conversation="c")
    second = await api.post(conversation="c", on_busy=how)
    assert await line(api) == {"active": second["turn_id"], "waiting": [waiting["turn_id"]]}
    assert (await api.http.get(f"/v1/turns/{first['turn_id']}")).json()["state"] == "cancelled"


async def test_waiting_turns_are_put_in_another_order(api: Api) -> None:
    active, *others = [(await api.post(conversation="c"))["turn_id"] for _ in range(4)]
    assert await line(api) == {"active": active, "waiting": others}
    wanted = [others[2], others[0], others[1]]
    reply = await api.http.put(QUEUE, json={"expected": others, "turns": wanted})
    assert (reply.status_code, reply.json()) == (200, {"active": active, "waiting": wanted})

    again = await api.http.put(QUEUE, json={"expected": others, "turns": wanted})
    assert again.status_code == 200, "as after a lost reply: they stand so already"
    late = await api.http.put(QUEUE, json={"expected": others, "turns": others})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "line_changed")
    assert late.headers["x-should-retry"] == "false"
    assert (await line(api))["waiting"] == wanted

    await api.http.post(f"/v1/turns/{wanted[0]}/cancel")
    running = await worker.claim(api.store, active)
    await running.answer("1")
    assert await line(api) == {"active": wanted[1], "waiting": [wanted[2]]}


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"expected": ["a", "b"], "turns": ["a"]}, "invalid_value", "turns"),
        ({"expected": ["a", "a"], "turns": ["a", "a"]}, "invalid_value", "turns"),
        ({"expected": ["a"], "turns": ["b"]}, "invalid_value", "turns"),
        ({"expected": ["a"]}, "missing_field", "turns"),
        ({"expected": ["a"], "turns": [1]}, "invalid_value", "turns[0]"),
        ({"expected": [], "turns": [], "order": []}, "unknown_field", "order"),
    ],
)
async def test_an_order_that_cannot_be_is_named(api: Api, body: object, code: str, param: str) -> None:
    await api.post(conversation="c")
    reply = await api.http.put(QUEUE, json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param)


async def test_a_queue_of_nobody_is_a_404(api: Api) -> None:
    assert (await api.http.get(QUEUE)).status_code == 404
    assert (await api.http.put(QUEUE, json={"expected": [], "turns": []})).status_code == 404


async def test_a_turn_that_begins_later_is_scheduled_and_holds_nobody_up(api: Api) -> None:
    when = round(time.time() + 3600, 3)
    later = await api.post(conversation="c", run_after=when)
    assert (later["state"], later["run_after"]) == ("scheduled", when)
    now = await api.post(conversation="c")
    assert await line(api) == {"active": now["turn_id"], "waiting": []}
    reply = await api.http.post(f"/v1/turns/{later['turn_id']}/cancel?if_state=scheduled")
    assert (reply.status_code, reply.json()["state"]) == (200, "cancelled")


@pytest.mark.parametrize("when", [1, -5.0, 9e12])
async def test_a_time_that_cannot_be_is_named(api: Api, when: float) -> None:
    reply = await api.http.post("/v1/turns", json={"message": "Hello?", "run_after": when})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "run_after")


async def test_a_turn_is_cancelled_only_in_the_state_it_was_seen_in(api: Api) -> None:
    posted = await api.post(conversation="c")
    path = f"/v1/turns/{posted['turn_id']}/cancel"
    refused = await api.http.post(f"{path}?if_state=running")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "turn_changed")
    assert (await api.http.get(f"/v1/turns/{posted['turn_id']}")).json()["state"] == "queued"
    assert (await api.http.post(f"{path}?if_state=queued")).json()["state"] == "cancelled"
    assert (await api.http.post(f"{path}?if_state=queued")).status_code == 409
    assert (await api.http.post(path)).json()["state"] == "cancelled"
    wrong = await api.http.post(f"{path}?if_state=completed")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "if_state")


async def test_a_turn_is_found_by_its_key(api: Api) -> None:
    named = await api.post(conversation="c", client_message_id="order 7&8")
    free = await api.post(client_message_id="order 7&8")
    assert named["turn_id"] != free["turn_id"]
    find = {"idempotency_key": "order 7&8"}
    by_key = await api.http.get("/v1/turns", params=find)
    by_both = await api.http.get("/v1/turns", params={**find, "conversation_id": "c"})
    assert (by_key.json(), by_both.json()) == (free, named)
    assert "replayed" not in by_key.json()
    for params, status in (
        ({"idempotency_key": "other"}, 404),
        ({**find, "conversation_id": "d"}, 404),
        ({**find, "conversation_id": "a/b"}, 422),
        ({}, 400),
        ({"idempotency_key": ""}, 400),
        ({"idempotency_key": "x" * 256}, 400),
    ):
        assert (await api.http.get("/v1/turns", params=params)).status_code == status, params
