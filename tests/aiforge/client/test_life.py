"""What the clients ask about turns that wait, conversations as a whole, dead letters and usage."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from aiforge.client import BadRequestError, ConflictError, Export, NotFoundError, Queue, UnreachableError
from tests.aiforge.client.conftest import Ask
from tests.aiforge.client.service import Answer, Service, answer, refusal

TURN = {"turn_id": "17ab", "conversation_id": "user-42", "state": "queued"}
QUESTION = {"question_id": "q_1", "kind": "approval", "text": "May I?", "tool": "refund", "input": {"a": 1}}
ASKING = {**TURN, "state": "requires_action", "question": QUESTION}
DOCUMENT = {
    "version": 1,
    "conversation_id": "c",
    "created_at": 1.5,
    "settings": {"memory_k": 4, "model": None},
    "messages": [{"role": "user", "content": "\u2028é"}],
}
ROW = dict.fromkeys(
    ("calls", "failed_calls", "lost_calls", "input_tokens", "output_tokens", "cached_tokens"), 3
) | {"reasoning_tokens": 0, "cost": "0.000000100", "unpriced_calls": 1}


def paths(service: Service) -> list[str]:
    return [f"{request.method} {request.path}" for request in service.requests]


def test_a_turn_says_how_it_meets_a_busy_conversation_and_when(service: Service, ask: Ask) -> None:
    service.answers = [answer({**TURN, "state": "scheduled", "run_after": 99.5}, 202)]
    options = {"on_busy": "reject", "run_after": 99.5, "on_disconnect": "cancel", "wait": 1}
    turn = ask(service.url, "submit", "Hi", conversation_id="c", **options)
    assert (turn.state, turn.run_after, turn.finished) == ("scheduled", 99.5, False)
    assert paths(service) == ["POST /v1/conversations/c/turns?wait=1&on_disconnect=cancel"]
    assert service.requests[0].body == {"message": "Hi", "on_busy": "reject", "run_after": 99.5}


def test_a_busy_conversation_is_a_conflict_that_is_not_asked_again(service: Service, ask: Ask) -> None:
    service.answers = [refusal(409, "conversation_busy", x_should_retry="false")]
    with pytest.raises(ConflictError) as busy:
        ask(service.url, "submit", "Hi", idempotency_key="k", on_busy="reject")
    assert (busy.value.code, busy.value.retryable, len(service.requests)) == ("conversation_busy", False, 1)


def test_a_turn_is_found_by_its_key(service: Service, ask: Ask) -> None:
    service.answers = [answer(TURN), answer(TURN)]
    ask(service.url, "find_turn", "a&b")
    ask(service.url, "find_turn", "k", conversation_id="c")
    assert paths(service) == [
        "GET /v1/turns?idempotency_key=a%26b",
        "GET /v1/turns?idempotency_key=k&conversation_id=c",
    ]


def test_a_question_is_typed_and_answered(service: Service, ask: Ask) -> None:
    service.answers = [answer(ASKING), Answer(b"{", cut=True), answer(TURN)]
    turn = ask(service.url, "wait", "17ab", 50)
    assert (turn.state, turn.question.tool, turn.question.input) == ("requires_action", "refund", {"a": 1})
    assert ask(service.url, "resume", "17ab", "q_1", "yes").state == "queued"
    assert paths(service) == ["GET /v1/turns/17ab?wait=30"] + 2 * ["POST /v1/turns/17ab/resume"]
    assert service.requests[2].body == {"question_id": "q_1", "answer": "yes"}


def test_a_cancellation_can_be_for_one_state_only(service: Service, ask: Ask) -> None:
    service.answers = [answer(TURN), Answer(b"{", cut=True), answer(TURN), refusal(409, "turn_changed")]
    ask(service.url, "cancel", "17ab")
    ask(service.url, "cancel", "17ab")
    with pytest.raises(ConflictError):
        ask(service.url, "cancel", "17ab", if_state="queued")
    service.answers = [Answer(b"{", cut=True)]
    with pytest.raises(UnreachableError):
        ask(service.url, "cancel", "17ab", if_state="queued")
    assert paths(service) == 3 * ["POST /v1/turns/17ab/cancel"] + 2 * [
        "POST /v1/turns/17ab/cancel?if_state=queued"
    ]


def test_a_queue_is_read_and_put_in_order(service: Service, ask: Ask) -> None:
    service.answers = [
        answer({"active": "1", "waiting": ["2", "3"]}),
        answer({"active": None, "waiting": ["3", "2"]}),
        Answer(b"{", cut=True),
    ]
    assert ask(service.url, "queue", "c") == Queue(active="1", waiting=["2", "3"])
    assert ask(service.url, "reorder", "c", ["2", "3"], ["3", "2"]).waiting == ["3", "2"]
    with pytest.raises(UnreachableError):
        ask(service.url, "reorder", "c", ["2", "3"], ["3", "2"])
    assert paths(service) == ["GET /v1/conversations/c/queue"] + 2 * ["PUT /v1/conversations/c/queue"]
    assert service.requests[1].body == {"expected": ["2", "3"], "turns": ["3", "2"]}


def test_conversations_come_in_pages(service: Service, ask: Ask) -> None:
    service.answers = [
        answer({"data": [{"conversation_id": "a", "last_turn_at": 9.5}], "has_more": True, "next": "9500:a"}),
        answer({"data": [{"conversation_id": "b", "ttl": 7}], "has_more": False, "next": None}),
    ]
    first, second = ask(service.url, "conversations")
    assert (first.conversation_id, first.last_turn_at, second.ttl) == ("a", 9.5, 7)
    assert paths(service) == [
        "GET /v1/conversations?limit=100",
        "GET /v1/conversations?limit=100&before=9500%3Aa",
    ]


def test_a_conversation_is_read_and_erased(service: Service, ask: Ask) -> None:
    service.answers = [
        answer({"conversation_id": "c", "on_busy": "reject", "tools": ["x"]}),
        answer({"conversation_id": "c", "messages": 4, "turns": 2, "stopped": 1}),
        refusal(404, "not_found"),
    ]
    assert ask(service.url, "conversation", "c").on_busy == "reject"
    receipt = ask(service.url, "erase", "c")
    assert (receipt.messages, receipt.turns, receipt.stopped) == (4, 2, 1)
    with pytest.raises(NotFoundError):
        ask(service.url, "erase", "c")
    assert paths(service) == ["GET /v1/conversations/c"] + 2 * ["DELETE /v1/conversations/c"]


def test_what_is_exported_is_imported_as_it_is(service: Service, ask: Ask) -> None:
    service.answers = [
        answer(DOCUMENT),
        answer({"conversation_id": "c"}, 201),
        answer({"conversation_id": "d"}),
    ]
    document = ask(service.url, "export", "c")
    assert document == Export(**DOCUMENT)  # type: ignore[arg-type]  # the fields by name
    ask(service.url, "import_conversation", document)
    assert ask(service.url, "import_conversation", document, conversation_id="d").conversation_id == "d"
    assert paths(service) == ["GET /v1/conversations/c/export"] + 2 * ["POST /v1/conversations/import"]
    assert [request.body for request in service.requests[1:]] == [
        DOCUMENT,
        {**DOCUMENT, "conversation_id": "d"},
    ]


def test_dead_letters(service: Service, ask: Ask) -> None:
    dead = {**TURN, "state": "failed", "error": {"code": "dead_lettered", "message": "it died"}}
    service.answers = [
        answer({"data": [dead]}),
        Answer(b"{", 202, cut=True),
        answer(TURN, 202),
        Answer(b"", 204),
    ]
    (letter,) = ask(service.url, "dead_letters", limit=7)
    assert letter.error.code == "dead_lettered"
    assert ask(service.url, "requeue_dead", "17ab").state == "queued"
    assert ask(service.url, "drop_dead", "17ab") is None
    assert paths(service) == ["GET /v1/dead?limit=7"] + 2 * ["POST /v1/dead/17ab/requeue"] + [
        "DELETE /v1/dead/17ab"
    ]


def test_usage(service: Service, ask: Ask) -> None:
    report = {"data": [{"day": "2030-01-31", "model": "m", **ROW}], "total_cost": "1.50"}
    service.answers = [answer(report), answer({"data": [], "total_cost": "0"}), refusal(400, "invalid_value")]
    found = ask(
        service.url, "usage", group_by=["day", "model"], first=date(2030, 1, 1), last=date(2030, 1, 31)
    )
    (row,) = found.data
    assert (row.day, row.model, row.provider, row.calls, row.cost) == (
        "2030-01-31", "m", None, 3, Decimal("0.0000001"),
    )  # fmt: skip
    assert found.total_cost == Decimal("1.50")
    assert ask(service.url, "usage").data == []
    with pytest.raises(BadRequestError):
        ask(service.url, "usage", last=date(2030, 1, 1))
    assert paths(service) == [
        "GET /v1/usage?group_by=day&group_by=model&from=2030-01-01&to=2030-01-31",
        "GET /v1/usage",
        "GET /v1/usage?to=2030-01-01",
    ]


def test_provider_calls_come_page_by_page(service: Service, ask: Ask) -> None:
    row = {"call_id": "17ab.t.1", "purpose": "answer", "provider": "openai", "model": "m", "outcome": "lost"}
    usage = {"input_tokens": 3, "estimated": True}
    known = {**row, "turn_id": "17ab", "attempt": 2, "cost": "0.0000001", "usage": usage}
    service.answers = [
        answer({"data": [known], "has_more": True, "next": "9:17ab.t.1"}),
        answer({"data": [row], "has_more": False, "next": None}),
        answer({"data": [], "next": None}),
    ]
    first, second = ask(service.url, "ledger", turn_id="17ab")
    assert (first.attempt, first.cost, first.usage.estimated) == (2, Decimal("0.0000001"), True)
    assert (second.attempt, second.cost, second.usage) == (None, None, None)
    asked = {"batch_id": "b", "conversation_id": "c", "first": date(2030, 1, 1), "last": date(2030, 1, 31)}
    assert list(ask(service.url, "ledger", **asked)) == []
    assert paths(service) == [
        "GET /v1/usage/calls?turn_id=17ab&limit=1000",
        "GET /v1/usage/calls?turn_id=17ab&after=9%3A17ab.t.1&limit=1000",
        "GET /v1/usage/calls?batch_id=b&conversation_id=c&from=2030-01-01&to=2030-01-31&limit=1000",
    ]


FOUND = {
    "conversation_id": "c",
    "version": 3,
    "baseline": 1,
    "revision": 2,
    "busy": False,
    "memory": "summary",
}


def test_settings_change_by_name_and_none_is_said(service: Service, ask: Ask) -> None:
    service.answers = [Answer(b"{", cut=True), answer(FOUND), answer(FOUND)]
    changed = ask(service.url, "change_conversation", "c", model=None, metadata={"a": None, "b": "2"})
    assert (changed.version, changed.baseline, changed.revision, changed.memory) == (3, 1, 2, "summary")
    ask(service.url, "change_conversation", "c", ttl=60, if_revision=2)
    assert paths(service) == ["PATCH /v1/conversations/c"] * 3
    bodies = [request.body for request in service.requests]
    assert bodies[1] == {"model": None, "metadata": {"a": None, "b": "2"}}
    assert bodies[2] == {"ttl": 60, "if_revision": 2}


def test_versions_are_read_page_by_page(service: Service, ask: Ask) -> None:
    one = {"kind": "turn", "at": 1.5, "messages": 2, "turn_id": "17ab", "to": None}
    service.answers = [
        answer({"object": "list", "data": [{"version": 4, **one}], "has_more": True}),
        answer(
            {
                "object": "list",
                "data": [{"version": 7, **one, "kind": "checkout", "to": 4}],
                "has_more": False,
            }
        ),
    ]
    found = ask(service.url, "versions", "c", after=3)
    assert [(version.version, version.kind, version.to) for version in found] == [
        (4, "turn", None),
        (7, "checkout", 4),
    ]
    assert paths(service) == [f"GET /v1/conversations/c/versions?after={after}&limit=100" for after in (3, 4)]


def test_going_back_branching_off_comparing_and_folding(service: Service, ask: Ask) -> None:
    message = {"role": "user", "content": "q"}
    service.answers = [
        answer(FOUND),
        answer(FOUND, 201),
        answer({"removed": [], "added": [message]}),
        answer(FOUND),
    ]
    ask(service.url, "checkout", "c", 1, if_version=2)
    ask(service.url, "branch", "c", version=0, new_id="d", model=None)
    assert [one.content for one in ask(service.url, "diff", "c", 0, 1).added] == ["q"]
    ask(service.url, "compact", "c", keep=0)
    assert paths(service) == [
        "POST /v1/conversations/c/checkout",
        "POST /v1/conversations/c/branch",
        "GET /v1/conversations/c/diff?from=0&to=1",
        "POST /v1/conversations/c/compact",
    ]
    assert [request.body for request in service.requests if request.method == "POST"] == [
        {"version": 1, "if_version": 2},
        {"version": 0, "conversation_id": "d", "settings": {"model": None}},
        {"keep": 0},
    ]


def test_a_checkout_whose_answer_was_lost_is_not_made_again(service: Service, ask: Ask) -> None:
    service.answers = [Answer(b"{", cut=True)]
    with pytest.raises(UnreachableError):
        ask(service.url, "checkout", "c", 1)
    assert len(service.requests) == 1


def test_conversations_are_asked_for_by_notes_and_state(service: Service, ask: Ask) -> None:
    service.answers = [answer({"object": "list", "data": [FOUND], "has_more": False, "next": None})]
    (found,) = ask(service.url, "conversations", busy=False, metadata={"a": "b=c", "d": ""})
    assert found.conversation_id == "c"
    assert paths(service) == ["GET /v1/conversations?limit=100&busy=false&metadata=a%3Db%3Dc&metadata=d%3D"]


def test_the_health_of_models(service: Service, ask: Ask) -> None:
    health = {"name": "openai/org/m", "circuit": "open", "open_until": 12.5, "pace": 0.5, "concurrency": 4}
    service.answers = [answer({"data": [health]}), Answer(b"", 204), refusal(404, "not_found")]
    (found,) = ask(service.url, "providers")
    assert (found.name, found.open_until, found.concurrency) == ("openai/org/m", 12.5, 4)
    assert found.cooling_until is found.tokens_per_minute is None
    assert ask(service.url, "reset_provider", "openai/org/m") is None
    with pytest.raises(NotFoundError):
        ask(service.url, "reset_provider", "x/y")
    assert paths(service)[:2] == ["GET /v1/providers", "POST /v1/providers/reset?name=openai%2Forg%2Fm"]
