"""When a provider call is repeated, and after how long."""

from __future__ import annotations

import pytest

from aiforge.core.retry import FIRST_WAIT, JITTER, LONGEST_WAIT, pause_before_retry
from aiforge.core.types import AuthenticationError, RateLimitError, RequestRefusedError, UnavailableError


@pytest.mark.parametrize("error", [AuthenticationError("no"), RequestRefusedError("no")])
def test_what_cannot_pass_is_not_repeated(error: AuthenticationError) -> None:
    assert pause_before_retry(error, 1, max_retries=3, time_left=600) is None


def test_the_error_itself_knows_whether_a_retry_can_help() -> None:
    used_up = RateLimitError("quota used up", status=429, retryable=False)
    assert pause_before_retry(used_up, 1, max_retries=3, time_left=600) is None


def test_there_are_as_many_retries_as_allowed() -> None:
    error = UnavailableError("down")
    pauses = [pause_before_retry(error, n, max_retries=3, time_left=600) for n in range(1, 6)]
    assert [pause is not None for pause in pauses] == [True, True, True, False, False]
    assert pause_before_retry(error, 1, max_retries=0, time_left=600) is None


def test_pauses_grow_spread_and_stay_bounded() -> None:
    error = UnavailableError("down")
    first = {pause_before_retry(error, 1, max_retries=30, time_left=600) for _ in range(20)}
    assert len(first) > 1
    assert all(pause is not None and FIRST_WAIT <= pause <= FIRST_WAIT + JITTER for pause in first)
    late = pause_before_retry(error, 30, max_retries=30, time_left=600)
    assert late == LONGEST_WAIT


def test_retry_after_is_never_undercut_and_comes_before_our_own_bound() -> None:
    for seconds in (0.0, 3.0, 45.0):
        error = RateLimitError("slow down", retry_after=seconds)
        pause = pause_before_retry(error, 1, max_retries=3, time_left=600)
        assert pause is not None
        assert seconds <= pause <= seconds + JITTER


def test_no_pause_reaches_past_the_deadline() -> None:
    assert pause_before_retry(RateLimitError("no", retry_after=60), 1, max_retries=3, time_left=30) is None
    assert pause_before_retry(UnavailableError("no"), 1, max_retries=3, time_left=0.1) is None
