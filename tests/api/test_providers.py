"""The health of models over HTTP."""

from __future__ import annotations

import pytest

from aiforge.core.setting_types import Limit
from tests.api.conftest import Api
from worker.contract.calls.providers import FAILURES, Ended, Wants

pytestmark = pytest.mark.anyio

NAME = "openai/org/model@127.0.0.1:8080"


async def fail(api: Api, times: int = FAILURES) -> None:
    wants = Wants(ended=[Ended("", "failed")] * times, chats=[1])
    await api.store.providers.step(NAME, "worker", 1, wants, Limit(requests_per_minute=60))


async def test_models_that_are_limited_or_not_well_are_listed(api: Api) -> None:
    assert (await api.http.get("/v1/providers")).json() == {"object": "list", "data": []}
    await fail(api)
    (found,) = (await api.http.get("/v1/providers")).json()["data"]
    assert found.pop("open_until") > 1e9
    assert found == {
        "name": NAME,
        "circuit": "open",
        "cooling_until": None,
        "failures": FAILURES,
        "pace": 1.0,
        "chats_in_flight": 0,
        "items_in_flight": 0,
        "requests_per_minute": 60,
        "tokens_per_minute": None,
        "concurrency": None,
    }


async def test_a_circuit_is_closed_by_hand(api: Api) -> None:
    await fail(api)
    done = await api.http.post("/v1/providers/reset", params={"name": NAME})
    assert (done.status_code, done.content) == (204, b"")
    (found,) = (await api.http.get("/v1/providers")).json()["data"]
    assert (found["circuit"], found["failures"]) == ("closed", 0)


@pytest.mark.parametrize(("query", "status"), [({"name": "x/y"}, 404), ({}, 400), ({"name": ""}, 400)])
async def test_what_cannot_be_reset(api: Api, query: dict[str, str], status: int) -> None:
    assert (await api.http.post("/v1/providers/reset", params=query)).status_code == status
