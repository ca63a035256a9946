"""Dead letters and usage over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from api import usage_schemas
from tests.api import worker
from tests.api.conftest import Api
from tests.support.turns import claim, die

pytestmark = pytest.mark.anyio


async def dead(api: Api, **options: Any) -> str:
    """A turn that was given up."""
    turn_id: str = (await api.post(**options))["turn_id"]
    running = await claim(api.store.turns, await api.store.turns.place(turn_id))
    assert (await die(api.store.turns, running))[0] == "dead"
    return turn_id


async def test_dead_letters_are_listed_the_latest_first(api: Api) -> None:
    assert (await api.http.get("/v1/dead")).json() == {"object": "list", "data": [], "has_more": False}
    first, second = await dead(api, conversation="c"), await dead(api)
    found = (await api.http.get("/v1/dead")).json()["data"]
    assert {turn["turn_id"] for turn in found} == {first, second}
    times = [turn["finished_at"] for turn in found]
    assert times == sorted(times, reverse=True)
    assert {turn["error"]["code"] for turn in found} == {"dead_lettered"}
    assert found[0] == (await api.http.get(f"/v1/turns/{found[0]['turn_id']}")).json()
    assert found[0] == (await api.http.get(f"/v1/dead/{found[0]['turn_id']}")).json()
    assert len((await api.http.get("/v1/dead?limit=1")).json()["data"]) == 1
    assert (await api.http.get("/v1/dead?limit=0")).json()["error"]["param"] == "limit"


async def test_a_dead_letter_is_posted_again_once(api: Api) -> None:
    letter = await dead(api, conversation="c", metadata={"a": "b"})
    made = [await api.http.post(f"/v1/dead/{letter}/requeue") for _ in range(2)]
    turn = made[0].json()
    assert [reply.status_code for reply in made] == [202, 202]
    assert made[1].json() == turn
    assert turn["turn_id"] != letter
    assert (turn["conversation_id"], turn["state"], turn["metadata"]) == ("c", "queued", {"a": "b"})
    assert made[0].headers["location"] == f"/v1/turns/{turn['turn_id']}"
    assert (await api.http.get("/v1/dead")).json()["data"] == []
    assert (await api.http.get(f"/v1/turns/{letter}")).json()["state"] == "failed"


async def test_a_dead_letter_is_dropped(api: Api) -> None:
    letter = await dead(api)
    dropped = await api.http.delete(f"/v1/dead/{letter}")
    assert (dropped.status_code, dropped.content) == (204, b"")
    assert (await api.http.delete(f"/v1/dead/{letter}")).status_code == 404
    assert (await api.http.get(f"/v1/dead/{letter}")).status_code == 404
    assert (await api.http.get("/v1/dead")).json()["data"] == []


async def test_what_is_no_dead_letter_is_a_404(api: Api) -> None:
    alive = (await api.post())["turn_id"]
    for turn_id in (alive, "170000000000000000000a"):
        assert (await api.http.post(f"/v1/dead/{turn_id}/requeue")).status_code == 404
        assert (await api.http.delete(f"/v1/dead/{turn_id}")).status_code == 404
        assert (await api.http.get(f"/v1/dead/{turn_id}")).status_code == 404
    assert (await api.http.delete("/v1/dead/x")).status_code == 422


async def test_usage_adds_up(api: Api) -> None:
    for _ in range(2):
        await api.answered("Hello?", "Hi!")
    report = (await api.http.get("/v1/usage")).json()
    cost = f"{2 * worker.COST:f}"
    (row,) = report["data"]
    assert row == {
        "model": "gpt-4o-mini", "calls": 2, "failed_calls": 0, "lost_calls": 0, "input_tokens": 24,
        "output_tokens": 6, "cached_tokens": 0, "reasoning_tokens": 0, "cost": cost, "estimated_cost": "0",
        "unpriced_calls": 0,
    }  # fmt: skip
    assert (report["object"], report["total_cost"]) == ("list", cost)

    today = datetime.now(UTC).date()
    params: dict[str, Any] = {
        "group_by": ["day", "purpose", "provider"], "from": today - timedelta(days=1), "to": today,
    }  # fmt: skip
    grouped = (await api.http.get("/v1/usage", params=params)).json()
    assert {row["provider"] for row in grouped["data"]} == {"openai"}
    assert {row["purpose"] for row in grouped["data"]} == {"answer"}
    assert sum(Decimal(row["cost"]) for row in grouped["data"]) == 2 * worker.COST
    past = {"to": (today - timedelta(days=9)).isoformat()}
    assert (await api.http.get("/v1/usage", params=past)).json() == {
        "object": "list", "data": [], "total_cost": "0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("group_by=tenant", "group_by"),
        ("from=yesterday", "from"),
        ("from=2030-01-02&to=2030-01-01", "from"),
        ("from=2020-01-01&to=2030-01-01", "from"),
        ("by=model", "by"),
        ("/calls?after=1:x", "after"),
        ("/calls?limit=0", "limit"),
        ("/calls?from=2030-01-02&to=2030-01-01", "from"),
        ("/calls?turn_id=171f0a93c2d4e5b6a7f809&conversation_id=c", None),
        ("/calls?group_by=model", "group_by"),
    ],
)
async def test_a_wrong_question_about_usage_is_named(api: Api, query: str, param: str | None) -> None:
    reply = await api.http.get(f"/v1/usage{query if query.startswith('/') else '?' + query}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_provider_calls_are_listed_page_by_page(api: Api) -> None:
    marked = "a-text-that-stands-in-no-row"
    turns = [(await api.answered(marked, marked, conversation="c"))["turn_id"] for _ in range(3)]
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {"conversation_id": "c", "limit": 2}
    for more in (True, False):
        reply = await api.http.get("/v1/usage/calls", params=params)
        assert marked not in reply.text
        page = reply.json()
        assert (page["object"], page["has_more"], page["next"] is not None) == ("list", more, more)
        assert set(page["data"][0]) == set(usage_schemas.LedgerRow.model_fields)
        found += page["data"]
        params["after"] = page["next"]
    assert [row["turn_id"] for row in found] == turns
    first = found[0]
    assert (first["attempt"], first["outcome"], first["cost"]) == (1, "ok", f"{worker.COST:f}")
    assert first["usage"]["input_tokens"] == 12
    (row,) = (await api.http.get("/v1/usage/calls", params={"turn_id": turns[1]})).json()["data"]
    assert row == found[1]
    everything = (await api.http.get("/v1/usage/calls", params={"from": "2020-01-01"})).json()["data"]
    assert sorted(row["call_id"] for row in everything) == sorted(row["call_id"] for row in found)
    unknown = await api.http.get("/v1/usage/calls", params={"conversation_id": "nobody"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    for wrong in ("turn_id=x", "batch_id=171f0a93c2d4e5b6a7f809", "conversation_id=.."):
        assert (await api.http.get(f"/v1/usage/calls?{wrong}")).status_code == 422
