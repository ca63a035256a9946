"""Which requests are sent again, and when."""

from __future__ import annotations

import httpx
import pytest

from aiforge.client.call import Call
from aiforge.client.retry import LONGEST_WAIT_SECONDS, Attempts, waits

READ = Call("GET", "/v1/turns/17ab", lambda _: None)
POST = Call("POST", "/v1/turns", lambda _: None)
KEYED = Call("POST", "/v1/turns", lambda _: None, headers={"Idempotency-Key": "k"})
SETTLED = Call("POST", "/v1/turns/17ab/cancel", lambda _: None, settled=True)
ERASE = Call("DELETE", "/v1/conversations/c", lambda _: None)

LOST = httpx.ReadError("the answer was lost")
NOBODY = httpx.ConnectError("nobody is there")


def refused(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(status, headers=headers)


@pytest.mark.parametrize("call", [READ, KEYED, SETTLED])
@pytest.mark.parametrize("outcome", [LOST, *map(refused, (429, 502, 503, 504))])
def test_what_may_be_done_twice_is_sent_again(
    call: Call[None], outcome: httpx.Response | httpx.HTTPError
) -> None:
    assert Attempts(call, 1).pause(outcome) is not None


@pytest.mark.parametrize("call", [POST, ERASE])
def test_anything_else_is_sent_again_only_where_nothing_was_done(call: Call[None]) -> None:
    again = {status: Attempts(call, 1).pause(refused(status)) is not None for status in (429, 502, 503, 504)}
    assert again == {429: True, 502: False, 503: True, 504: False}
    assert Attempts(call, 1).pause(LOST) is None


@pytest.mark.parametrize("outcome", [NOBODY, httpx.ConnectTimeout("slow"), *map(refused, (200, 404, 500))])
def test_what_stands_is_said_at_once(outcome: httpx.Response | httpx.HTTPError) -> None:
    assert Attempts(READ, 5).pause(outcome) is None


def test_pauses_double_until_no_attempt_is_left() -> None:
    attempts = Attempts(READ, 3)
    assert [attempts.pause(LOST) for _ in range(4)] == pytest.approx([0.2, 0.4, 0.8, None])


@pytest.mark.parametrize(
    ("asked", "pause"), [("0", 0.2), ("7", 7.0), ("3600", 10.0), ("soon", 0.2), ("1.5", 0.2), ("", 0.2)]
)
def test_the_service_says_when_to_come_back(asked: str, pause: float) -> None:
    assert Attempts(READ, 1).pause(refused(503, **{"Retry-After": asked})) == pause


def test_a_long_wait_is_made_of_short_ones_and_ends_with_a_look() -> None:
    assert next(waits(1000.0)) == LONGEST_WAIT_SECONDS
    assert list(waits(0.0)) == [0.0]
