"""Schedules over HTTP: made, listed, changed, deleted, and gone with their conversation."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from api import schedule_schemas
from api.bodies import ScheduleBody
from tests.api.conftest import Api
from worker.contract.schedule.schemas import Fire, Schedule, ScheduleChange
from worker.contract.schemas import TurnRequest

pytestmark = pytest.mark.anyio
PATH = "/v1/schedules"
BODY: dict[str, Any] = {
    "cron": "0 9 * * MON-FRI",
    "timezone": "Europe/Berlin",
    "conversation_id": "user-42",
    "turn": {"message": "Any news?", "on_busy": "interrupt", "temperature": 0.5},
    "metadata": {"team": "shop"},
}
FILE_PARAM = "batch.input_file_id"
FILE_BATCH: dict[str, Any] = {
    "turn": None,
    "conversation_id": None,
    "batch": {
        "input_file_id": "file-171f0a93c2d4e5b6a7f809",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
}


async def made(api: Api, **more: Any) -> dict[str, Any]:
    body = {name: value for name, value in {**BODY, **more}.items() if value is not None}
    reply = await api.http.post(PATH, json=body)
    assert reply.status_code == 201, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def test_a_schedule_is_made_and_read_back(api: Api) -> None:
    reply = await api.http.post(PATH, json=BODY)
    assert reply.status_code == 201
    found = reply.json()
    assert reply.headers["location"] == f"{PATH}/{found['schedule_id']}"
    assert {name: found[name] for name in ("cron", "timezone", "conversation_id", "metadata")} == {
        name: BODY[name] for name in ("cron", "timezone", "conversation_id", "metadata")
    }
    assert {name: value for name, value in found["turn"].items() if value is not None} == BODY["turn"]
    assert (found["catch_up"], found["paused"], found["batch"], found["last_fire"]) == (
        "last",
        False,
        None,
        None,
    )
    assert found["next_at"] > time.time()
    assert (await api.http.get(f"{PATH}/{found['schedule_id']}")).json() == found
    assert (await api.http.get("/v1/conversations/user-42")).status_code == 200


async def test_a_batch_is_posted_as_it_would_be(api: Api) -> None:
    batch = {"items": ["Open?", {"message": "Why?", "id": "2"}], "model": "m"}
    found = await made(api, turn=None, conversation_id=None, batch=batch)
    assert found["kind"] == "batch"
    assert found["batch"]["items"] == [{"message": "Open?"}, {"message": "Why?", "id": "2"}]


async def test_under_a_key_it_is_made_once(api: Api) -> None:
    headers = {"Idempotency-Key": "nightly"}
    first = await api.http.post(PATH, json=BODY, headers=headers)
    again = await api.http.post(PATH, json=BODY, headers=headers)
    assert again.json() == first.json()
    assert ("idempotent-replayed" in first.headers, again.headers["idempotent-replayed"]) == (False, "true")
    other = await api.http.post(PATH, json={**BODY, "cron": "1 9 * * *"}, headers=headers)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_mismatch")
    await api.http.delete(f"{PATH}/{first.json()['schedule_id']}")
    gone = await api.http.post(PATH, json=BODY, headers=headers)
    assert (gone.status_code, gone.json()["error"]["code"]) == (410, "gone")


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"cron": "61 9 * * *"}, 400, "cron"),
        ({"cron": None}, 400, "cron"),
        ({"timezone": "Mars/Base"}, 400, "timezone"),
        ({"turn": None}, 400, "turn"),
        ({"turn": {"message": "x", "run_after": 5}}, 400, "turn.run_after"),
        ({"turn": {"message": "x", "tools": ["nonsense"]}}, 400, "turn.tools"),
        ({"turn": {"massage": "x"}}, 400, "turn.massage"),
        ({"turn": {"message": "x", "client_message_id": "k"}}, 400, "turn.client_message_id"),
        ({"turn": None, "batch": {"items": []}}, 422, "conversation_id"),
        ({"catch_up": "some"}, 400, "catch_up"),
        ({"starts_at": 5}, 400, "starts_at"),
        ({"conversation_id": "a b"}, 422, "conversation_id"),
        ({"when": "now"}, 400, "when"),
        ({"cron": "0 0 30 2 *"}, 400, "cron"),
        ({**FILE_BATCH, "batch": {**FILE_BATCH["batch"], "input_file_id": "nonsense"}}, 400, FILE_PARAM),
        (FILE_BATCH, 400, FILE_PARAM),
    ],
)
async def test_what_is_wrong_is_named(api: Api, fields: dict[str, Any], status: int, param: str) -> None:
    body = {name: value for name, value in {**BODY, **fields}.items() if value is not None}
    reply = await api.http.post(PATH, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)
    assert (await api.http.get(PATH)).json()["data"] == []


async def test_pages_join_and_can_be_of_one_conversation(api: Api) -> None:
    names = [(await made(api, conversation_id=f"c{number % 2}"))["schedule_id"] for number in range(5)]
    seen: list[str] = []
    params: dict[str, Any] = {"limit": 2}
    while True:
        page = (await api.http.get(PATH, params=params)).json()
        seen += [one["schedule_id"] for one in page["data"]]
        assert page["has_more"] == (page["next"] is not None)
        if page["next"] is None:
            break
        params["before"] = page["next"]
    assert sorted(seen) == sorted(names)
    assert not {"turn", "batch"} & page["data"][0].keys()
    of_one = (await api.http.get(PATH, params={"conversation_id": "c1"})).json()["data"]
    assert {one["schedule_id"] for one in of_one} == {names[1], names[3]}
    for wrong in ({"before": "x"}, {"conversation_id": "a b"}, {"limit": "0"}, {"after": "x"}):
        assert (await api.http.get(PATH, params=wrong)).status_code in (400, 422)


async def test_a_schedule_is_paused_resumed_and_moved(api: Api) -> None:
    path = f"{PATH}/{(await made(api))['schedule_id']}"
    paused = (await api.http.patch(path, json={"paused": True})).json()
    assert (paused["paused"], paused["next_at"]) == (True, None)
    moved = (
        await api.http.patch(path, json={"paused": False, "cron": "30 7 * * *", "timezone": "UTC"})
    ).json()
    assert (moved["cron"], moved["paused"], moved["next_at"] % 86_400) == ("30 7 * * *", False, 7.5 * 3_600)
    assert (await api.http.get(path)).json() == moved
    for wrong, param in (({}, "cron"), ({"cron": "x"}, "cron"), ({"turn": {"message": "x"}}, "turn")):
        reply = await api.http.patch(path, json=wrong)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    keyed = await api.http.patch(path, json={"paused": True}, headers={"Idempotency-Key": "k"})
    assert keyed.status_code == 400


async def test_a_deleted_schedule_is_gone(api: Api) -> None:
    name = (await made(api))["schedule_id"]
    assert (await api.http.delete(f"{PATH}/{name}")).json() == {"schedule_id": name, "deleted": True}
    for method in ("GET", "DELETE"):
        assert (await api.http.request(method, f"{PATH}/{name}")).status_code == 404
    assert (await api.http.patch(f"{PATH}/{name}", json={"paused": True})).status_code == 404
    assert (await api.http.get(f"{PATH}/nonsense")).status_code == 422


async def test_erasing_a_conversation_says_how_many_went_with_it(api: Api) -> None:
    name = (await made(api))["schedule_id"]
    receipt = (await api.http.delete("/v1/conversations/user-42")).json()
    assert receipt["schedules"] == 1
    assert (await api.http.get(f"{PATH}/{name}")).status_code == 404


async def test_the_latest_fire_is_shown(api: Api) -> None:
    start = time.time() // 60 * 60 - 60
    found = await made(api, cron="* * * * *", timezone="UTC", starts_at=start)
    owed = await api.store.schedules.owed(found["schedule_id"])
    assert owed is not None
    assert owed.expected == start
    await api.store.schedules.advance(owed, owed.expected, None, Fire(tick=owed.expected, turn_id="t"))
    shown = (await api.http.get(f"{PATH}/{found['schedule_id']}")).json()
    assert shown["last_fire"] == {"tick": start, "turn_id": "t", "batch_id": None, "error": None}
    assert shown["next_at"] is None


async def test_the_documented_examples_are_accepted(api: Api) -> None:
    for example in schedule_schemas.ScheduleBody.model_json_schema()["examples"]:
        reply = await api.http.post(PATH, json=example)
        assert reply.is_success, reply.text
        schedule_schemas.Schedule.model_validate_json(reply.content)
        for change in schedule_schemas.ScheduleChange.model_json_schema()["examples"]:
            assert (await api.http.patch(reply.headers["location"], json=change)).is_success


@pytest.mark.parametrize(
    ("documented", "real", "more"),
    [
        (schedule_schemas.ScheduleBody, ScheduleBody, set()),
        (schedule_schemas.ScheduleChange, ScheduleChange, set()),
        (schedule_schemas.Schedule, Schedule, {"replayed"}),
        (schedule_schemas.ListedSchedule, Schedule, {"replayed", "turn", "batch"}),
        (schedule_schemas.Fire, Fire, set()),
        (schedule_schemas.ScheduledTurn, TurnRequest, {"run_after"}),
    ],
)
def test_the_documented_fields_are_the_real_ones(
    documented: type[BaseModel], real: type[msgspec.Struct], more: set[str]
) -> None:
    assert set(documented.model_fields) | more == set(real.__struct_fields__)
