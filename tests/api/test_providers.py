"""The health of models over HTTP."""

from __future__ import annotations

import httpx
import pytest

from aiforge.core.setting_types import Limit
from tests.api.conftest import Api
from worker.contract.calls.providers import FAILURES, Ended, Wants

pytestmark = pytest.mark.anyio

NAME = "openai/org/model@127.0.0.1:8080"


async def fail(api: Api, name: str = NAME) -> None:
    wants = Wants(ended=[Ended("", "failed")] * FAILURES, chats=[1])
    await api.store.providers.step(name, "worker", 1, wants, Limit(requests_per_minute=60))


async def reset(api: Api, name: str) -> httpx.Response:
    return await api.http.post("/v1/providers/reset", params={"name": name})


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


@pytest.mark.parametrize("name", [NAME, "openai/org/model", "org/model", "org/model@127.0.0.1:8080"])
async def test_a_circuit_is_closed_by_hand(api: Api, name: str) -> None:
    await fail(api)
    await fail(api, "openai/model@127.0.0.1:8080")
    done = await reset(api, name)
    assert (done.status_code, done.content) == (204, b"")
    other, found = (await api.http.get("/v1/providers")).json()["data"]
    assert (found["name"], found["circuit"], found["failures"]) == (NAME, "closed", 0)
    assert (other["circuit"], other["failures"]) == ("open", FAILURES)


async def test_a_name_that_several_models_have_is_refused_with_theirs(api: Api) -> None:
    await fail(api)
    await fail(api, NAME.replace("8080", "8081"))
    refused = await reset(api, "org/model")
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "name")
    assert error["message"] == f"name: several models are called so: {NAME}, {NAME.replace('8080', '8081')}"
    assert {one["circuit"] for one in (await api.http.get("/v1/providers")).json()["data"]} == {"open"}


async def test_of_an_unknown_model_the_known_ones_are_named(api: Api) -> None:
    nothing = (await reset(api, "x/y")).json()["error"]["message"]
    assert nothing.endswith("; no model was limited or not well within the last hour")
    await fail(api)
    unknown = await reset(api, "x/y")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["message"] == f"nothing is known of model 'x/y'; known: {NAME}"


@pytest.mark.parametrize(("query", "status"), [({"name": "x/y"}, 404), ({}, 400), ({"name": ""}, 400)])
async def test_what_cannot_be_reset(api: Api, query: dict[str, str], status: int) -> None:
    assert (await api.http.post("/v1/providers/reset", params=query)).status_code == status
