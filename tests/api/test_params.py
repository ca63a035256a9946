"""Parameters say one thing, once, in plain digits."""

from __future__ import annotations

import pytest

from tests.api.conftest import Api

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "query", ["wait=1_0", "wait=1&wait=2", "wait=%2010", "wait=\u0661", "wait=1e1", "wait=", "wait=ten"]
)
async def test_an_odd_wait_is_refused_by_name(api: Api, query: str) -> None:
    reply = await api.http.post(f"/v1/turns?{query}", json={"message": "Hello?"})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_value", "wait")


async def test_other_numbers_are_read_alike(api: Api) -> None:
    turn_id = (await api.post())["turn_id"]
    for query in ("after=1_0", "after=1&after=1"):
        reply = await api.http.get(f"/v1/turns/{turn_id}/events?{query}")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "after")
    reply = await api.http.get(f"/v1/turns/{turn_id}/events", headers={"Last-Event-ID": "1_0"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "Last-Event-ID")


async def test_what_may_be_given_twice_may_be(api: Api) -> None:
    reply = await api.http.get("/v1/usage?group_by=model&group_by=day")
    assert reply.status_code == 200


async def test_a_day_is_a_day_in_utc(api: Api) -> None:
    """A moment with a time zone of its own can be on another one, and is not cut down to a day in silence."""
    moments = ["2026-01-31T00:00:00%2B14:00", "2026-01-31T00:00:00Z", "2026-01-31%2000:00"]
    numbers = ["0", "86400", "1764460800"]
    others = ["2026-02-30", "2026-W05-6", "%202026-01-31", "\u0662026-01-31", ""]
    for path in ("/v1/usage", "/v1/usage/calls"):
        for day in (*moments, *numbers, *others):
            reply = await api.http.get(f"{path}?from={day}")
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "from"), day
            assert reply.json()["error"]["message"] == "from: must be a day such as 2026-01-31"
        reply = await api.http.get(f"{path}?to=2026-01-31T00:00:00Z")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "to")
        assert (await api.http.get(f"{path}?from=2026-01-31&to=2026-01-31")).status_code == 200
