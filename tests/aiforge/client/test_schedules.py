"""What the clients ask about schedules."""

from __future__ import annotations

import pytest

from aiforge.client import ConflictError, Item
from tests.aiforge.client.conftest import Ask
from tests.aiforge.client.service import Answer, Service, answer, refusal

SCHEDULE = {
    "schedule_id": "sched_17ab",
    "cron": "0 9 * * *",
    "kind": "turn",
    "turn": {"message": "Hi"},
    "next_at": 99,
    "last_fire": {"tick": 39, "error": {"code": "conversation_busy", "message": "is busy"}},
    "something_new": 1,
}


def paths(service: Service) -> list[str]:
    return [f"{request.method} {request.path}" for request in service.requests]


def test_a_turn_is_scheduled(service: Service, ask: Ask) -> None:
    service.answers = [answer(SCHEDULE, 201)]
    made = ask(
        service.url, "schedule_turn", "0 9 * * *", "Hi", turn={"on_busy": "reject", "model": None},
        timezone="Europe/Berlin", conversation_id="c", catch_up="all",
    )  # fmt: skip
    assert (made.schedule_id, made.timezone, made.next_at) == ("sched_17ab", "UTC", 99)
    assert made.last_fire.error.code == "conversation_busy"
    assert paths(service) == ["POST /v1/schedules"]
    assert service.requests[0].body == {
        "cron": "0 9 * * *",
        "turn": {"message": "Hi", "on_busy": "reject"},
        "timezone": "Europe/Berlin",
        "conversation_id": "c",
        "catch_up": "all",
    }


def test_a_batch_is_scheduled_and_asked_for_again_under_its_key(service: Service, ask: Ask) -> None:
    service.answers = [Answer(b"{", cut=True), answer({**SCHEDULE, "kind": "batch"}, 201)]
    items = ["a", Item(message="b", id="1")]
    ask(service.url, "schedule_batch", "0 9 * * *", items, batch={"model": "m"}, idempotency_key="k")
    assert len(service.requests) == 2
    assert service.requests[1].body == {
        "cron": "0 9 * * *",
        "batch": {"items": ["a", {"message": "b", "id": "1"}], "model": "m"},
    }


def test_without_a_key_a_lost_answer_is_an_error(service: Service, ask: Ask) -> None:
    service.answers = [refusal(409, "too_many_schedules", x_should_retry="false")]
    with pytest.raises(ConflictError):
        ask(service.url, "schedule_turn", "0 9 * * *", "Hi")
    assert len(service.requests) == 1


def test_pages_are_read_to_the_end(service: Service, ask: Ask) -> None:
    service.answers = [
        answer({"data": [SCHEDULE, SCHEDULE], "next": "5:sched_17ab"}),
        answer({"data": [SCHEDULE], "next": None}),
    ]
    assert len(ask(service.url, "schedules", conversation_id="c")) == 3
    assert paths(service) == [
        "GET /v1/schedules?limit=100&conversation_id=c",
        "GET /v1/schedules?limit=100&conversation_id=c&before=5%3Asched_17ab",
    ]


def test_one_is_read_changed_and_deleted(service: Service, ask: Ask) -> None:
    service.answers = [answer(SCHEDULE), answer({**SCHEDULE, "paused": True}), answer({"deleted": True})]
    assert ask(service.url, "schedule", "a/b").turn == {"message": "Hi"}
    assert ask(service.url, "change_schedule", "sched_17ab", paused=True).paused
    ask(service.url, "delete_schedule", "sched_17ab")
    assert paths(service) == [
        "GET /v1/schedules/a%2Fb",
        "PATCH /v1/schedules/sched_17ab",
        "DELETE /v1/schedules/sched_17ab",
    ]
    assert service.requests[1].body == {"paused": True}
