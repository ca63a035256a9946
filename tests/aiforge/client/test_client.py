"""Both clients against the same scripted service: one set of tests, run on each."""

from __future__ import annotations

import asyncio
import inspect
import threading
from decimal import Decimal

import pytest

from aiforge.client import (
    APIError,
    AsyncClient,
    BadRequestError,
    Client,
    ClientError,
    ConflictError,
    Item,
    NotFoundError,
    ProtocolError,
    RateLimitedError,
    RequestError,
    ServerError,
    UnauthorizedError,
    UnreachableError,
)
from aiforge.client.stream import EventLines, Reading
from aiforge.core.events import Done, Event, Gap, Message, Token
from tests.aiforge.client.conftest import Ask, ask_sync
from tests.aiforge.client.service import Answer, Service, answer, event, refusal, stream

MANY = 120
"""More streams at a time than httpx's own limit."""
TURN = {"turn_id": "17ab", "conversation_id": "user-42", "state": "queued"}
BATCH = {
    "id": "batch_17ab",
    "object": "batch",
    "status": "in_progress",
    "request_counts": {"total": 3, "completed": 1, "failed": 1},
    "usage": {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12},
    "cost": "0.000000100",
    "unpriced_calls": 2,
}


def test_submit_sends_what_was_said_and_no_more(service: Service, ask: Ask) -> None:
    service.answers = [answer(TURN, 202), answer(TURN, 202)]
    turn = ask(service.url, "submit", "Hi", token="secret")
    assert (turn.turn_id, turn.state, turn.finished) == ("17ab", "queued", False)
    ask(
        service.url,
        "submit",
        "Hi",
        conversation_id="user/42",
        if_not_exists="reject",
        idempotency_key="k1",
        wait=2.5,
        model="m",
        max_tokens=None,
    )
    first, second = service.requests
    assert (first.method, first.path, first.body) == ("POST", "/v1/turns", {"message": "Hi"})
    assert first.headers["authorization"] == "Bearer secret"
    assert second.path == "/v1/conversations/user%2F42/turns?if_not_exists=reject&wait=2.5"
    assert second.body == {"message": "Hi", "model": "m"}
    assert second.headers["idempotency-key"] == "k1"


def test_a_finished_turn_is_typed(service: Service, ask: Ask) -> None:
    usage = {"input_tokens": 4, "output_tokens": 2, "cached_tokens": 1, "something_new": 1}
    full = {**TURN, "state": "completed", "answer": "é\u2028\x85", "usage": usage, "cost": "0.10"}
    service.answers = [answer({**full, "field_of_a_newer_service": 1})]
    turn = ask(service.url, "turn", "17ab")
    assert turn.finished
    assert turn.answer == "é\u2028\x85"
    assert turn.cost == Decimal("0.10")
    assert (turn.usage.input_tokens, turn.usage.cached_tokens) == (4, 1)


def test_wait_asks_until_the_turn_is_finished(service: Service, ask: Ask) -> None:
    service.answers = [answer(TURN), answer(TURN), answer({**TURN, "state": "failed"})]
    assert ask(service.url, "wait", "17ab", 50).state == "failed"
    assert [request.path for request in service.requests] == [
        "/v1/turns/17ab?wait=30",
        "/v1/turns/17ab?wait=30",
        "/v1/turns/17ab?wait=30",
    ]


def test_wait_gives_the_turn_as_it_is_when_time_is_over(service: Service, ask: Ask) -> None:
    service.answers = [answer(TURN)]
    assert ask(service.url, "wait", "17ab", 0).state == "queued"


def test_conversations_and_their_messages(service: Service, ask: Ask) -> None:
    service.answers = [
        answer({"conversation_id": "c", "memory_k": 4}, 201),
        answer({"data": [{"role": "user", "content": "1"}], "has_more": True}),
        answer({"data": [{"role": "assistant", "content": [{"type": "text"}]}], "has_more": False}),
    ]
    assert ask(service.url, "create_conversation", "c", memory_k=4).memory_k == 4
    messages = ask(service.url, "history", "c")
    assert [message.content for message in messages] == ["1", [{"type": "text"}]]
    assert service.requests[0].body == {"conversation_id": "c", "memory_k": 4}
    assert [request.path for request in service.requests[1:]] == [
        "/v1/conversations/c/messages?after=0&limit=100",
        "/v1/conversations/c/messages?after=1&limit=100",
    ]


def test_batches_that_are_files(service: Service, ask: Ask) -> None:
    pages = [{"data": [{**BATCH, "id": f"batch_{n}"}], "has_more": n == 0} for n in range(2)]
    service.answers = [answer(BATCH), *map(answer, pages), *[answer(BATCH)] * 3, answer({"deleted": True})]
    service.answers.append(answer({"object": "cache", "deleted": True, "answers": 7}))
    made = ask(service.url, "submit_batch_file", "file-1", idempotency_key="k", dedupe=True, cache_ttl=60)
    assert (made.id, made.output_file_id) == ("batch_17ab", None)
    assert [batch.id for batch in ask(service.url, "batches")] == ["batch_0", "batch_1"]
    for name in ("pause_batch", "resume_batch", "retry_batch", "delete_batch"):
        ask(service.url, name, "batch_17ab")
    assert ask(service.url, "forget_answers") == 7
    first, *others = service.requests
    assert first.headers["idempotency-key"] == "k"
    assert first.body == {
        "input_file_id": "file-1",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "dedupe": True,
        "cache_ttl": 60,
    }
    assert [(request.method, request.path) for request in others] == [
        ("GET", "/v1/batches?limit=100"),
        ("GET", "/v1/batches?limit=100&after=batch_0"),
        ("POST", "/v1/batches/batch_17ab/pause"),
        ("POST", "/v1/batches/batch_17ab/resume"),
        ("POST", "/v1/batches/batch_17ab/retry"),
        ("DELETE", "/v1/batches/batch_17ab"),
        ("DELETE", "/v1/cache"),
    ]


def test_pages_of_long_answers_have_fewer_rows(service: Service, ask: Ask) -> None:
    long = b"".join(
        b'{"index":%d,"status":"ok","answer":"%b"}\n' % (index, b"x" * 1_000_000) for index in range(4)
    )
    service.answers = [Answer(long), Answer(b"")]
    assert len(ask(service.url, "results", "batch_17ab")) == 4
    asked = [one.path.rpartition("?")[2] for one in service.requests]
    assert asked == ["after=0&limit=50", "after=4&limit=8"]


def test_batches(service: Service, ask: Ask) -> None:
    rows = b'{"index":1,"id":"b","status":"ok","answer":"a\xe2\x80\xa8b","cost":"0.1"}\n'
    rows += b'{"index":2,"status":"error","error":{"code":"rate_limited","message":"no"}}\n'
    service.answers = [answer(BATCH, 202), answer(BATCH), Answer(rows), Answer(b""), answer(BATCH)]
    items = ["a", Item(message="b", id="7", conversation="c")]
    assert ask(service.url, "submit_batch", items, system_prompt="S").id == "batch_17ab"
    batch = ask(service.url, "batch", "batch_17ab")
    assert (batch.request_counts.done, batch.ended) == (2, False)
    assert (batch.usage.output_tokens, batch.cost, batch.unpriced_calls) == (5, Decimal("0.0000001"), 2)
    first, second = ask(service.url, "results", "batch_17ab", after=1)
    assert (first.answer, first.cost, first.error) == ("a\u2028b", Decimal("0.1"), None)
    assert (second.index, second.id, second.error.code) == (2, None, "rate_limited")
    ask(service.url, "cancel_batch", "batch_17ab")
    sent = [{"message": "a"}, {"message": "b", "id": "7", "conversation": "c"}]
    assert service.requests[0].body == {"items": sent, "system_prompt": "S"}
    assert service.requests[3].path == "/v1/batches/batch_17ab/results?after=3&limit=1000"
    assert service.requests[4].path == "/v1/batches/batch_17ab/cancel"


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, BadRequestError, False),
        (413, BadRequestError, False),
        (401, UnauthorizedError, False),
        (404, NotFoundError, False),
        (410, NotFoundError, False),
        (409, ConflictError, False),
        (429, RateLimitedError, True),
        (500, ServerError, True),
    ],
)
def test_errors(service: Service, ask: Ask, status: int, kind: type[APIError], retryable: bool) -> None:
    service.answers = [refusal(status, "some_code", Retry_After="7")]
    with pytest.raises(kind, match="it is some_code") as caught:
        ask(service.url, "submit", "Hi", retries=0)
    error = caught.value
    assert (error.status, error.code, error.param, error.request_id) == (
        status,
        "some_code",
        "message",
        "req_1",
    )
    assert (error.retry_after, error.retryable) == (7.0, retryable)


def test_what_is_not_the_service_is_named_so(service: Service, ask: Ask) -> None:
    service.answers = [Answer(b"<html>", 404), Answer(b"<html>")]
    for _ in range(2):
        with pytest.raises(ProtocolError):
            ask(service.url, "turn", "17ab")


def test_nobody_there(service: Service, ask: Ask) -> None:
    with pytest.raises(UnreachableError, match=r"cannot reach http://127\.0\.0\.1:1"):
        ask("http://127.0.0.1:1", "turn", "17ab")


def test_what_can_pass_is_asked_again(service: Service, ask: Ask) -> None:
    service.answers = [refusal(503, "store_unavailable"), Answer(b"{", cut=True), answer(TURN)]
    assert ask(service.url, "turn", "17ab").turn_id == "17ab"


def test_a_post_whose_answer_was_lost_is_not_repeated_without_a_key(service: Service, ask: Ask) -> None:
    service.answers = [Answer(b"{", 202, cut=True)]
    with pytest.raises(UnreachableError):
        ask(service.url, "submit", "Hi")
    service.answers = [Answer(b"{", 202, cut=True), answer(TURN, 202)]
    assert ask(service.url, "submit", "Hi", idempotency_key="k").turn_id == "17ab"


def test_a_broken_stream_is_resumed_behind_the_last_event(service: Service, ask: Ask) -> None:
    service.answers = [
        stream(event(1, type="queued"), b": ping\n\n", event(2, type="token", text="日本😀"), cut=True),
        stream(event(3, type="token", text="\x85\u2028é"), b"id: 4\nevent: tok"),
        refusal(503, "draining"),
        stream(event(4, type="message", text="all"), event(5, type="done")),
    ]
    found = ask(service.url, "stream", "17ab")
    assert [number for number, _ in found] == [1, 2, 3, 4, 5]
    assert found[1:] == [
        (2, Token("日本😀")),
        (3, Token("\x85\u2028é")),
        (4, Message("all")),
        (5, Done()),
    ]
    assert [request.headers["last-event-id"] for request in service.requests] == ["0", "2", "3", "3"]


def test_a_stream_joined_behind_its_end_gives_the_last_event(service: Service, ask: Ask) -> None:
    service.answers = [stream(event(5, type="done"))]
    assert ask(service.url, "stream", "17ab", after=5) == [(5, Done())]


def test_a_gap_is_shown_and_an_unknown_event_skipped(service: Service, ask: Ask) -> None:
    service.answers = [
        stream(
            event(8, type="gap", **{"from": 3, "to": 8}),
            event(9, type="of_a_newer_service", text="x"),
            event(10, type="done"),
        )
    ]
    assert ask(service.url, "stream", "17ab", after=2) == [(8, Gap(3, 8)), (10, Done())]


def test_any_number_of_streams_is_read_at_a_time(service: Service) -> None:
    service.answers = [stream(event(1, type="done")) for _ in range(MANY)]
    service.gate = threading.Barrier(MANY, timeout=30)

    async def read(client: AsyncClient) -> list[tuple[int, Event]]:
        return [pair async for pair in client.stream("17ab")]

    async def read_all() -> list[list[tuple[int, Event]]]:
        async with AsyncClient(service.url, retries=0) as client:
            return await asyncio.gather(*(read(client) for _ in range(MANY)))

    assert asyncio.run(read_all()) == [[(1, Done())]] * MANY


def test_a_stream_of_an_unknown_turn_is_an_error_at_once(service: Service, ask: Ask) -> None:
    service.answers = [refusal(404, "not_found")]
    with pytest.raises(NotFoundError):
        ask(service.url, "stream", "17ab")
    with pytest.raises(UnreachableError):
        ask("http://127.0.0.1:1", "stream", "17ab")


@pytest.mark.parametrize("cut", [True, False])
def test_a_question_to_a_human_ends_the_stream(service: Service, ask: Ask, cut: bool) -> None:
    service.answers = [stream(question(3), cut=cut)]
    assert [number for number, _ in ask(service.url, "stream", "17ab")] == [3]
    service.answers = [stream(event(4, type="started", attempt=1), event(5, type="done"))]
    assert [number for number, _ in ask(service.url, "stream", "17ab", after=3)] == [4, 5]


def test_a_question_that_was_answered_ends_nothing(service: Service, ask: Ask) -> None:
    service.answers = [
        stream(event(1, type="queued"), question(2), event(3, type="token", text="a"), cut=True),
        stream(event(4, type="done")),
    ]
    assert [number for number, _ in ask(service.url, "stream", "17ab")] == [1, 2, 3, 4]


def test_only_the_end_of_a_response_shows_that_a_question_is_open() -> None:
    reading = Reading("17ab", 0, "http://127.0.0.1:1")
    for chunk in (question(1), event(2, type="token", text="a")):
        reading.feed(chunk)
        assert not reading.over
    reading.closed()
    assert not reading.over
    reading.feed(question(3))
    reading.closed()
    assert reading.over


def question(number: int) -> bytes:
    return event(number, type="requires_action", question_id="q", kind="question", text="?")


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(value).parameters)
            for name, value in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("__")
        }

    assert methods(Client) == methods(AsyncClient)


def test_events_are_read_whatever_the_cuts() -> None:
    text = event(1, type="token", text="日本😀\x85\u2028é") + b": ping\n\n" + event(2, type="done")
    whole: list[tuple[int, Event]] = [(1, Token("日本😀\x85\u2028é")), (2, Done())]
    for cut in range(len(text)):
        lines = EventLines()
        assert lines.feed(text[:cut]) + lines.feed(text[cut:]) == whole
    lines = EventLines()
    assert [pair for byte in text for pair in lines.feed(bytes([byte]))] == whole


def test_an_event_that_is_none_of_ours_is_an_error() -> None:
    with pytest.raises(ClientError):
        EventLines().feed(b'id: x\nevent: done\ndata: {"type":"done"}\n\n')


@pytest.mark.parametrize("conversation_id", ["", ".", "..", "\ud800"])
def test_an_id_that_no_url_can_carry_is_refused_before_anything_is_sent(
    service: Service, conversation_id: str
) -> None:
    with pytest.raises(RequestError, match="there can be no id"):
        ask_sync(service.url, "submit", "Hello?", conversation_id=conversation_id)
    with pytest.raises(RequestError, match="there can be no id"):
        ask_sync(service.url, "history", conversation_id)


def test_half_a_character_is_refused_before_anything_is_sent(service: Service) -> None:
    with pytest.raises(RequestError, match=r"^message holds a lone surrogate"):
        ask_sync(service.url, "submit", "\ud800")
    with pytest.raises(RequestError, match=r"^items holds a lone surrogate"):
        ask_sync(service.url, "submit_batch", [Item(message="x", id="\ud800")])
