"""A turn that asks a human: seen, answered, streamed on."""

from __future__ import annotations

import asyncio

import pytest

from aiforge.core.events import RequiresAction, encode
from tests.api.conftest import Api
from tests.api.sse import events, opened
from tests.support.turns import Running, claim, paid
from worker.contract.schemas import Paused, Question

pytestmark = pytest.mark.anyio


async def asked(api: Api, turn_id: str, number: int = 1) -> Running:
    """A worker takes the turn and asks for an approval."""
    running = await claim(api.store.turns, await api.store.turns.place(turn_id))
    question = Question(
        question_id=f"q_{number}",
        kind="approval",
        text="May I?",
        call_id="call_1",
        tool="refund",
        input={"order": "A1"},
    )
    call = paid(running.call_id)
    said = await running.store.pause(
        running.claim,
        Paused(messages=[{"role": "user", "content": "Refund A1"}], question=question, calls=[call]),
        events=[encode(RequiresAction(question.question_id, "approval", "May I?"))],
        position=0,
        calls=[call],
    )
    assert said == "ok"
    return running


async def test_a_question_is_read_and_answered_once(api: Api) -> None:
    turn_id = (await api.post(conversation="c"))["turn_id"]
    await asked(api, turn_id)
    turn = (await api.http.get(f"/v1/turns/{turn_id}")).json()
    assert turn["state"] == "requires_action"
    assert turn["question"] == {
        "question_id": "q_1", "kind": "approval", "text": "May I?", "tool": "refund",
        "input": {"order": "A1"},
    }  # fmt: skip

    path, body = f"/v1/turns/{turn_id}/resume", {"question_id": "q_1", "answer": "approved"}
    unknown = await api.http.post(path, json={**body, "question_id": "q_2"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    for _ in range(2):
        resumed = await api.http.post(path, json=body)
        assert resumed.status_code == 200
        assert (resumed.json()["state"], resumed.json()["question"]) == ("queued", None)
    other = await api.http.post(path, json={**body, "answer": "no"})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "already_answered")
    assert other.headers["x-should-retry"] == "false"

    running = await claim(api.store.turns, await api.store.turns.place(turn_id))
    assert running.claim.answer == "approved"
    await running.answer("It is paid back.")
    late = await api.http.post(path, json={"question_id": "q_3", "answer": "yes"})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "not_waiting")
    assert (await api.http.post(path, json=body)).status_code == 200


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"question_id": "q_1"}, "missing_field", "answer"),
        ({"question_id": "q_1", "answer": " "}, "invalid_value", "answer"),
        ({"question_id": 1, "answer": "yes"}, "invalid_value", "question_id"),
        ({"question_id": "q_1", "answer": "yes", "by": "me"}, "unknown_field", "by"),
    ],
)
async def test_an_answer_that_is_none_is_named(api: Api, body: object, code: str, param: str) -> None:
    turn_id = (await api.post())["turn_id"]
    await asked(api, turn_id)
    reply = await api.http.post(f"/v1/turns/{turn_id}/resume", json=body)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param)
    assert (await api.http.get(f"/v1/turns/{turn_id}")).json()["state"] == "requires_action"


async def test_a_stream_ends_at_an_open_question_and_goes_past_an_answered_one(api: Api) -> None:
    turn_id = (await api.post())["turn_id"]
    await asked(api, turn_id)
    async with asyncio.timeout(10):
        first = await events(api.http, turn_id)
    assert [event.event for event in first] == ["queued", "started", "requires_action"]
    await api.store.resume(turn_id, "q_1", "approved")
    async with opened(
        api.http, "GET", f"/v1/turns/{turn_id}/events", headers={"Last-Event-ID": str(first[-1].id)}
    ) as stream:
        await asked(api, turn_id, 2)
        assert [event.event for event in await stream.rest()] == ["started", "requires_action"]

    whole = await events(api.http, turn_id)
    assert [event.data.get("question_id") for event in whole if event.event == "requires_action"] == [
        "q_1",
        "q_2",
    ]
    await api.store.resume(turn_id, "q_2", "approved")
    await (await claim(api.store.turns, await api.store.turns.place(turn_id))).answer("Done.")
    assert [event.event for event in await events(api.http, turn_id)][-3:] == ["started", "message", "done"]


async def test_a_wait_ends_when_the_turn_asks(api: Api) -> None:
    turn_id = (await api.post())["turn_id"]
    async with asyncio.timeout(10):
        waiting = asyncio.create_task(api.http.get(f"/v1/turns/{turn_id}?wait=60"))
        await asked(api, turn_id)
        assert (await waiting).json()["question"]["question_id"] == "q_1"
        assert (await api.http.get(f"/v1/turns/{turn_id}?wait=60")).json()["state"] == "requires_action"
